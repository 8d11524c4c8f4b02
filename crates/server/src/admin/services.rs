//! ALTER CELL SHUTDOWN, STARTUP and RESTART SERVICES: the clean stop of SIGTERM, and a clean stop with a start behind it.
//!
//! A cell is one process: CELLSRV (grid disks) and MS (this service) come and go together, and RS (what starts a cell again) is the supervisor
//! of the host, where there is one. Never stops what somebody uses, unless told to with FORCE.

use super::Context;
use super::change::{Refusal, Step};
use crate::again;
use crate::attach;
use cellcli::command::{Service, ServiceAction};
use cellcli::{ErrorCode, format};
use std::sync::mpsc;

/// Why the cell stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopCause {
    /// A signal of this name.
    Signal(&'static str),
    /// A statement; `again`: it is to start again.
    Statement {
        /// Start again.
        again: bool,
    },
}

/// Where a stop is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Stopper(pub(crate) mpsc::Sender<StopCause>);

impl Stopper {
    /// Stop; whether anybody listens.
    fn stop(&self, again: bool) -> bool {
        self.0.send(StopCause::Statement { again }).is_ok()
    }
}

/// The statement.
pub(super) fn services(
    context: &Context,
    action: ServiceAction,
    service: Service,
    force: bool,
    lines: &mut Vec<String>,
) -> Step {
    let begin = lines.len();
    carry_out(context, action, service, force, lines)?;
    // Said first, and only of what is not refused.
    lines.insert(begin, format::services_starting(action, service));
    Ok(())
}

fn carry_out(context: &Context, action: ServiceAction, service: Service, force: bool, lines: &mut Vec<String>) -> Step {
    match (action, service) {
        (_, Service::Rs) => {
            let what = "the cell has no restart server of its own: RS is whatever of this host started it";
            let hint = "`systemctl status`, or who runs `flashcell serve`; RESTART SERVICES ALL starts the cell again without it";
            return Err(not_now(what, hint));
        }
        (ServiceAction::Startup, _) => lines.push(format!("{} services are running already.", service.word())),
        (ServiceAction::Shutdown, Service::Ms) => {
            let what = "MS answers this statement, and nobody would be left to start it";
            return Err(not_now(what, "SHUTDOWN SERVICES ALL stops the cell"));
        }
        (ServiceAction::Restart, Service::Ms) => context.certificates.renew(),
        (ServiceAction::Shutdown | ServiceAction::Restart, Service::Cellsrv | Service::All) => {
            let again = action == ServiceAction::Restart;
            if again && again::program().is_none() {
                let what =
                    "the program that this cell runs is not where it was: it could be stopped, and not started again";
                let hint = "install flashcell there, or have a supervisor do it: `systemctl restart`, or SIGTERM and `flashcell serve`";
                return Err(not_now(what, hint));
            }
            if !force {
                check_unused(context, again)?;
            }
            if !context.stopper.stop(again) {
                return Err(not_now("the cell is stopping", "LIST CELL answers when it is there again"));
            }
            lines.push(
                if again {
                    "The cell stops clean now and starts again: LIST CELL answers when it is there."
                } else {
                    "The cell stops clean now: `flashcell serve` starts it again."
                }
                .to_owned(),
            );
            return Ok(());
        }
    }
    lines.push(format::services_done(action, service));
    Ok(())
}

fn not_now(what: &str, hint: &str) -> Refusal {
    Refusal::new(ErrorCode::NotPermittedNow, what, Some(hint))
}

/// Nobody is connected; or, where the cell comes back, nobody but attached block devices, which wait for it.
fn check_unused(context: &Context, again: bool) -> Step {
    let used: Vec<String> = context
        .cell
        .grid_disks()
        .iter()
        .filter(|disk| disk.sessions() > 0)
        .map(|disk| disk.name())
        .filter(|name| !again || attach::attached_by(&context.dir, name).is_none())
        .collect();
    let (Some(first), more) = (used.first(), used.len().saturating_sub(1)) else { return Ok(()) };
    let others = if more == 0 { String::new() } else { format!(" and {more} other grid disks") };
    let hint = "LIST GRIDDISK ATTRIBUTES name, asmDeactivationOutcome tells who; with FORCE their connections end once what is under way is answered";
    Err(not_now(&format!("clients are connected to grid disk {first}{others}"), hint))
}
