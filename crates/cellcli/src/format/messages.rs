//! The lines that tell of success, in the vendor's words. Never ends a line: the caller does.

use crate::command::{Service, ServiceAction};
use crate::table::ObjectType;

/// `GridDisk DATA_CD_00_c1 successfully created`
#[must_use]
pub fn created(object: ObjectType, name: &str) -> String {
    success(object, name, "created")
}

/// `GridDisk DATA_CD_00_c1 successfully altered`
#[must_use]
pub fn altered(object: ObjectType, name: &str) -> String {
    success(object, name, "altered")
}

/// `Flash cache c1_FLASHCACHE successfully dropped`
#[must_use]
pub fn dropped(object: ObjectType, name: &str) -> String {
    success(object, name, "dropped")
}

fn success(object: ObjectType, name: &str, done: &str) -> String {
    let spec = object.spec();
    if spec.title_with_name {
        format!("{} {name} successfully {done}", spec.title)
    } else {
        format!("{} successfully {done}", spec.title)
    }
}

/// `Stopping CELLSRV services...`, said before the work begins.
#[must_use]
pub fn services_starting(action: ServiceAction, service: Service) -> String {
    let doing = match action {
        ServiceAction::Shutdown => "Stopping",
        ServiceAction::Startup => "Starting",
        ServiceAction::Restart => "Restarting",
    };
    format!("{doing} {} services...", service.word())
}

/// `The SHUTDOWN of CELLSRV services was successful.`
#[must_use]
pub fn services_done(action: ServiceAction, service: Service) -> String {
    format!("The {} of {} services was successful.", action.word(), service.word())
}
