//! CREATE, ALTER and DROP on the cell.
//!
//! What the language has and this cell cannot do is refused by name, never ignored. Statements on several objects stop at
//! the first failure and say which were done.

use super::rows::{flash_cache_name, flash_log_mode_name, flash_log_name, rows, rows_named, timestamp};
use super::{Context, alert_statements, alter_cell, cell_disks, in_service};
use crate::console::WRITES_WAIT;
use crate::init::{caching_mode_named, default_mode_on_disk, purpose_named};
use cell::FrozenDisk;
use cell::{AdminError, CellError, GridDiskLabels};
use cellcli::command::{Change, DiskType, Operation, Target};
use cellcli::{ErrorCode, ObjectType, failure_text, format};
use celldisk::catalog::CatalogError;
use celldisk::{
    CachingMode, CachingPolicy, CellDiskError, Changed, DeviceId, FillStrategy, FlashLogMode, GridDiskError,
    GridDiskSpec, LabelError, Purpose, Role,
};
use std::sync::Arc;
use std::time::Duration;

/// Why a statement was not carried out.
pub(super) struct Refusal {
    code: ErrorCode,
    what: String,
    hint: Option<String>,
}

impl Refusal {
    pub(super) fn new(code: ErrorCode, what: impl Into<String>, hint: Option<&str>) -> Refusal {
        Refusal { code, what: what.into(), hint: hint.map(str::to_owned) }
    }

    pub(super) fn unsupported(what: impl Into<String>) -> Refusal {
        let what = format!("{} is not supported by this version", what.into());
        Refusal::new(ErrorCode::NotSupported, what, None)
    }

    pub(super) fn missing(object: ObjectType, name: &str) -> Refusal {
        let what = format!("{} does not exist: {name}", object.spec().title);
        let hint = format!("LIST {} shows what there is", object.spec().word);
        Refusal::new(ErrorCode::NoSuchObject, what, Some(&hint))
    }

    /// The lines for stderr.
    pub(super) fn text(&self) -> String {
        failure_text(self.code, &self.what, self.hint.as_deref())
    }
}

impl From<AdminError> for Refusal {
    fn from(error: AdminError) -> Refusal {
        if let AdminError::Store(error) = error {
            return error.into();
        }
        let code = match &error {
            AdminError::NoGridDisk(_) | AdminError::NoCellDisk(_) => ErrorCode::NoSuchObject,
            AdminError::InUse(..) | AdminError::Stopping | AdminError::StillDirty(_) => ErrorCode::NotPermittedNow,
            AdminError::WriteBackUnsafe(_) | AdminError::FlushCancelled(_) => ErrorCode::NotPermittedNow,
            AdminError::MayBeTorn(_) | AdminError::RestartFirst(_) | AdminError::LastCopy { .. } => {
                ErrorCode::NotPermittedNow
            }
            AdminError::CannotFreeze(..)
            | AdminError::IsFrozen(_)
            | AdminError::NotFrozen(_)
            | AdminError::MadeActive(_) => ErrorCode::NotPermittedNow,
            AdminError::RedoOnFlash(_) | AdminError::RingLeaving(_) | AdminError::NoDurableFlash => {
                ErrorCode::NotPermittedNow
            }
            AdminError::FlashNotAtWork(_)
            | AdminError::NoFlashLeft
            | AdminError::CellDiskInUse(..)
            | AdminError::LastDisk(_) => ErrorCode::NotPermittedNow,
            AdminError::NotForRedo(_) | AdminError::NoFlash(_) | AdminError::TooLarge(..) => ErrorCode::InvalidValue,
            AdminError::RedoInWriteBack(_) | AdminError::FreezeTooLong(_) => ErrorCode::InvalidValue,
            AdminError::NoJournal(_) | AdminError::RingFailed(..) | AdminError::FlashUncertain(_) => {
                ErrorCode::DeviceFailed
            }
            // The device is well, but it carries somebody's data.
            AdminError::Cell(CellError::Format {
                error: CellDiskError::Foreign { .. } | CellDiskError::InUse { .. } | CellDiskError::Newer(_),
                ..
            }) => ErrorCode::NotPermittedNow,
            AdminError::Memory(_) | AdminError::NoRoomForLog(_) => ErrorCode::NoSpace,
            AdminError::Plan(_) => ErrorCode::BadPlan,
            AdminError::Store(_) | AdminError::Cell(_) => ErrorCode::DeviceFailed,
        };
        let text = error.to_string();
        let (what, hint) = text.split_once("\nhint: ").map_or((text.as_str(), None), |(what, hint)| (what, Some(hint)));
        Refusal::new(code, what, hint)
    }
}

/// What the catalog calls them where there are too many.
const GRID_DISKS: &str = "grid disks";

impl From<GridDiskError> for Refusal {
    fn from(error: GridDiskError) -> Refusal {
        let code = match &error {
            GridDiskError::NoSuch => ErrorCode::NoSuchObject,
            GridDiskError::Exists { .. } | GridDiskError::Invalid(CatalogError::NameTaken { .. }) => {
                ErrorCode::ObjectExists
            }
            GridDiskError::NoSpace { .. } => ErrorCode::NoSpace,
            GridDiskError::Invalid(CatalogError::Limit { what: GRID_DISKS, max }) => {
                let what = format!("a cell has {max} grid disks at most, and this one has them");
                return Refusal::new(ErrorCode::TooLarge, what, Some("drop some, or make fewer and larger ones"));
            }
            GridDiskError::TooSmall { .. }
            | GridDiskError::Range { .. }
            | GridDiskError::Invalid(_)
            | GridDiskError::Label { error: CellDiskError::Label(LabelError::Name { .. }), .. } => {
                ErrorCode::InvalidValue
            }
            GridDiskError::Fixed { .. } | GridDiskError::Adopted { .. } => ErrorCode::NotModifiable,
            GridDiskError::Busy | GridDiskError::Switch { .. } | GridDiskError::Generations => {
                ErrorCode::NotPermittedNow
            }
            GridDiskError::NotPresent { .. }
            | GridDiskError::Zeroing { .. }
            | GridDiskError::Label { .. }
            | GridDiskError::Lost { .. } => ErrorCode::DeviceFailed,
        };
        Refusal::new(code, error.to_string(), error.hint())
    }
}

/// Lines of success, and what ended the statement early.
pub(super) type Done = (Vec<String>, Option<Refusal>);

pub(super) type Step<T = ()> = Result<T, Refusal>;

/// A catalog change that some devices did not take stands; the log tells.
pub(super) fn stood<T>(changed: Changed<T>) -> T {
    for failure in &changed.failed {
        tracing::error!(cell_disk = %failure.name, error = %failure.error, "out of service: it did not take a change");
    }
    changed.value
}

/// CREATE.
pub(super) async fn create(context: &Arc<Context>, change: &Change) -> Done {
    let mut lines = Vec::new();
    let ended = match change.object {
        ObjectType::GridDisk => create_grid_disks(context, change, &mut lines).await,
        ObjectType::FlashCache => create_flash_cache(context, change, &mut lines).await,
        ObjectType::FlashLog => create_flash_log(context, change, &mut lines).await,
        ObjectType::Pin => pin(context, change, &mut lines).await,
        ObjectType::CellDisk => cell_disks::create(context, change, &mut lines).await,
        ObjectType::Threshold => alert_statements::create_threshold(context, change, &mut lines).await,
        other => Err(Refusal::unsupported(format!("CREATE {}", other.spec().word))),
    };
    (lines, ended.err())
}

/// ALTER.
pub(super) async fn alter(context: &Arc<Context>, change: &Change) -> Done {
    let mut lines = Vec::new();
    let ended = match change.object {
        ObjectType::Cell => alter_cell::alter(context, change, &mut lines).await,
        ObjectType::CellDisk => cell_disks::alter(context, change, &mut lines).await,
        ObjectType::GridDisk => alter_grid_disks(context, change, &mut lines).await,
        ObjectType::FlashCache => alter_flash_cache(context, change, &mut lines).await,
        ObjectType::FlashLog => alter_flash_log(context, change, &mut lines).await,
        ObjectType::Threshold => alert_statements::alter_thresholds(context, change, &mut lines).await,
        ObjectType::AlertHistory => alert_statements::examine(context, change, &mut lines).await,
        ObjectType::IormPlan => super::iorm::alter(context, change, &mut lines).await,
        ObjectType::Database => super::iorm::alter_databases(context, change, &mut lines).await,
        ObjectType::MetricDefinition => super::metric_definitions::alter(context, change, &mut lines).await,
        other => Err(Refusal::unsupported(format!("ALTER {}", other.spec().word))),
    };
    (lines, ended.err())
}

/// DROP.
pub(super) async fn drop(context: &Arc<Context>, change: &Change) -> Done {
    let mut lines = Vec::new();
    let ended = match change.object {
        ObjectType::GridDisk => drop_grid_disks(context, change, &mut lines).await,
        ObjectType::FlashCache => drop_flash_cache(context, &mut lines).await,
        ObjectType::FlashLog => drop_flash_log(context, change, &mut lines).await,
        ObjectType::Pin => pin(context, change, &mut lines).await,
        ObjectType::CellDisk => cell_disks::drop(context, change, &mut lines).await,
        ObjectType::Threshold => alert_statements::drop_thresholds(context, change, &mut lines).await,
        ObjectType::AlertHistory => alert_statements::forget(context, change, &mut lines).await,
        other => Err(Refusal::unsupported(format!("DROP {}", other.spec().word))),
    };
    (lines, ended.err())
}

/// The names a statement is about: those given, each of which must exist, or all of the disk type; then WHERE.
pub(super) fn targets(context: &Context, change: &Change) -> Step<Vec<String>> {
    let rows = match &change.target {
        Target::Names(names) => rows_named(context, change.object, names),
        Target::All(_) | Target::Whole => rows(context, change.object),
    };
    let attribute = |row: &cellcli::Row, name| row.get(name).map(cellcli::Value::text);
    let mut chosen = Vec::new();
    match &change.target {
        Target::Names(names) => {
            for name in names {
                let row = rows.iter().find(|row| row.name().eq_ignore_ascii_case(name));
                chosen.push(row.ok_or_else(|| Refusal::missing(change.object, name))?);
            }
        }
        Target::All(None) | Target::Whole => chosen.extend(&rows),
        Target::All(Some(disk_type)) => {
            let word = match disk_type {
                DiskType::FlashDisk => "FlashDisk",
                DiskType::HardDisk => "HardDisk",
            };
            chosen.extend(rows.iter().filter(|row| attribute(row, "diskType").as_deref() == Some(word)));
        }
    }
    if let Some(filter) = &change.filter {
        let matcher = cellcli::answer::Matcher::new(change.object, filter)
            .map_err(|kind| Refusal::new(kind.code(), kind.to_string(), None))?;
        chosen.retain(|row| matcher.matches(row));
    }
    Ok(chosen.into_iter().map(cellcli::Row::name).collect())
}

fn policy_named(word: &str) -> Step<CachingPolicy> {
    match word.to_ascii_lowercase().as_str() {
        "default" => Ok(CachingPolicy::Default),
        "keep" => Ok(CachingPolicy::Keep),
        "none" => Ok(CachingPolicy::None),
        _ => Err(Refusal::unsupported(format!("cachingPolicy={word}"))),
    }
}

fn flash_log_mode_named(word: &str) -> Step<FlashLogMode> {
    let known = FlashLogMode::ALL.into_iter().find(|mode| flash_log_mode_name(*mode).eq_ignore_ascii_case(word));
    known.ok_or_else(|| Refusal::unsupported(format!("flashLogMode={word}")))
}

fn fill_named(word: &str) -> Step<FillStrategy> {
    match word.to_ascii_lowercase().as_str() {
        "read" => Ok(FillStrategy::Read),
        "evict" => Ok(FillStrategy::Evict),
        "feed" => Ok(FillStrategy::Feed),
        _ => Err(Refusal::unsupported(format!("fillStrategy={word}"))),
    }
}

/// The attributes a grid disk may be given, of whatever statement.
struct GridDiskSettings {
    mode: Option<CachingMode>,
    policy: Option<CachingPolicy>,
    fill: Option<FillStrategy>,
    purpose: Option<Purpose>,
    flash_log_mode: Option<FlashLogMode>,
    size_bytes: Option<u64>,
    labels: GridDiskLabels,
}

impl GridDiskSettings {
    fn of(change: &Change) -> Step<GridDiskSettings> {
        let mode = change
            .choice("cachingMode")
            .map(|word| caching_mode_named(word).ok_or_else(|| Refusal::unsupported(format!("cachingMode={word}"))));
        let purpose = change
            .choice("purpose")
            .map(|word| purpose_named(word).ok_or_else(|| Refusal::unsupported(format!("purpose={word}"))));
        Ok(GridDiskSettings {
            mode: mode.transpose()?,
            policy: change.choice("cachingPolicy").map(policy_named).transpose()?,
            fill: change.choice("fillStrategy").map(fill_named).transpose()?,
            purpose: purpose.transpose()?,
            flash_log_mode: change.choice("flashLogMode").map(flash_log_mode_named).transpose()?,
            size_bytes: change.size_bytes("size"),
            labels: GridDiskLabels {
                comment: change.text("comment").map(str::to_owned),
                available_to: change.list("availableTo").map(|clients| clients.join(",")),
                read_only: change.choice("readOnly").map(|word| word.eq_ignore_ascii_case("true")),
            },
        })
    }
}

async fn create_grid_disks(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    let catalog = context.cell.store().catalog();
    let mut places: Vec<(String, DeviceId)> = Vec::new();
    match &change.target {
        Target::Names(names) => {
            let on = change.text("cellDisk").unwrap_or("");
            let (id, _) = catalog.member_named(on).ok_or_else(|| Refusal::missing(ObjectType::CellDisk, on))?;
            places.extend(names.iter().map(|name| (name.clone(), id)));
        }
        Target::All(disk_type) => {
            let prefix = change.text("prefix").unwrap_or("");
            let wanted = match disk_type {
                Some(DiskType::FlashDisk) => Role::Flash,
                // As the vendor's: flash takes part only when it is named.
                Some(DiskType::HardDisk) | None => Role::Disk,
            };
            let members = catalog.members.iter().filter(|(_, member)| member.role == wanted);
            places.extend(members.map(|(id, member)| (format!("{prefix}_{}", member.name), *id)));
            places.sort_unstable();
        }
        Target::Whole => {}
    }
    let settings = GridDiskSettings::of(change)?;
    for (name, cell_disk) in places {
        let free_bytes = context.cell.store().catalog().free_bytes(cell_disk);
        let spec = GridDiskSpec {
            name: name.clone(),
            cell_disk,
            size_bytes: settings.size_bytes.unwrap_or(free_bytes),
            purpose: settings.purpose.unwrap_or(Purpose::Data),
            caching_mode: settings.mode.unwrap_or_else(|| default_mode(context, &settings, cell_disk)),
            caching_policy: settings.policy.unwrap_or(CachingPolicy::Default),
            fill: settings.fill.unwrap_or_default(),
            read_only: settings.labels.read_only.unwrap_or(false),
            available_to: settings.labels.available_to.clone().unwrap_or_default(),
            comment: settings.labels.comment.clone().unwrap_or_default(),
            created: context.world.clock.wall(),
        };
        let made = context.cell.create_grid_disk(spec, &mut |_, _| ()).await?;
        if crate::serve::exceeds_announced(context.cell.grid_disks().len()) {
            crate::serve::announce_memory(&context.cell, &context.front_end);
        }
        lines.push(format::created(ObjectType::GridDisk, &made.name()));
        lines.extend(settings.size_bytes.and_then(|asked| told_size(&made.name(), asked, made.size_bytes())));
    }
    Ok(())
}

/// That a grid disk has not exactly the size that was asked for.
pub(crate) fn told_size(name: &str, asked_bytes: u64, size_bytes: u64) -> Option<String> {
    let text = || format!("GridDisk {name} has {size_bytes} bytes: {asked_bytes} rounded up to a multiple of 64K");
    (asked_bytes != size_bytes).then(text)
}

/// As ALTER CELL flashCacheMode has it, for data on disks. What lies on flash gains nothing from a second copy there.
fn default_mode(context: &Context, settings: &GridDiskSettings, cell_disk: DeviceId) -> CachingMode {
    let purpose = settings.purpose.unwrap_or(Purpose::Data);
    let catalog = context.cell.store().catalog();
    match catalog.members.get(&cell_disk).map(|member| member.role) {
        Some(Role::Flash) => CachingMode::None,
        Some(Role::Disk) if purpose == Purpose::Data && context.cell.is_flash_cache_write_back() => {
            CachingMode::WriteBack
        }
        _ => default_mode_on_disk(purpose),
    }
}

async fn alter_grid_disks(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    match change.operation {
        None => {}
        Some(Operation::Active) => return in_service::activate(context, change, lines).await,
        Some(Operation::Inactive) => return in_service::deactivate(context, change, lines).await,
        Some(Operation::Freeze) => {
            // ALL: those that are not offline.
            let names = if matches!(change.target, Target::All(None)) && change.filter.is_none() {
                Vec::new()
            } else {
                targets(context, change)?
            };
            let time = change.number("seconds").map_or(cell::FREEZE_DEFAULT, Duration::from_secs);
            for FrozenDisk { name, as_of, writes_wait } in context.cell.freeze(&names, time).await? {
                let as_of = timestamp(as_of).text();
                let wait = if writes_wait { WRITES_WAIT } else { "" };
                lines.push(format!("GridDisk {name} frozen for {} s, as of {as_of}{wait}", time.as_secs()));
            }
            return Ok(());
        }
        Some(Operation::Thaw) => {
            let names = targets(context, change)?;
            // Of all, those that are frozen.
            let is_all = matches!(change.target, Target::All(None)) && change.filter.is_none();
            context.cell.thaw(if is_all { &[] } else { &names })?;
            lines.extend(names.iter().map(|name| format::altered(ObjectType::GridDisk, name)));
            return Ok(());
        }
        Some(operation @ (Operation::Flush | Operation::CancelFlush)) => {
            let names = targets(context, change)?;
            // None chosen are not all.
            if !names.is_empty() {
                flush(context, operation, &names, change.no_wait).await?;
            }
            lines.extend(names.iter().map(|name| format::altered(ObjectType::GridDisk, name)));
            return Ok(());
        }
        Some(Operation::ValidateMail) => return Err(Refusal::unsupported("VALIDATE MAIL of a grid disk")),
        Some(Operation::Services { .. }) => return Err(Refusal::unsupported("SERVICES of a grid disk")),
    }
    if change.setting("seconds").is_some() {
        return Err(Refusal::new(ErrorCode::InvalidValue, "seconds= says how long a FREEZE lasts", Some("add FREEZE")));
    }
    let names = targets(context, change)?;
    let settings = GridDiskSettings::of(change)?;
    let new_name = change.text("name");
    if new_name.is_some() && names.len() > 1 {
        let what = format!("one name cannot be given to {} grid disks", names.len());
        return Err(Refusal::new(ErrorCode::InvalidValue, what, None));
    }
    let cell = &context.cell;
    for name in names {
        // Redo is not in write-back: a statement that ends either of the two and begins the other ends first.
        if let Some(purpose) = settings.purpose.filter(|purpose| *purpose != Purpose::Redo) {
            cell.set_purpose(&name, purpose).await?;
        }
        if settings.mode.is_some() || settings.policy.is_some() {
            cell.set_caching(&name, settings.mode, settings.policy).await?;
        }
        if let Some(fill) = settings.fill {
            cell.set_fill(&name, fill).await?;
        }
        if let Some(size_bytes) = settings.size_bytes {
            let size_now = cell.grid_disk(&name).map_or(0, |disk| disk.size_bytes());
            if size_bytes < size_now && !change.force {
                let what = format!("{name} would lose the end of its content");
                return Err(Refusal::new(ErrorCode::NotPermittedNow, what, Some("use FORCE if that is wanted")));
            }
            cell.resize_grid_disk(&name, size_bytes, &mut |_, _| ()).await?;
            let size_now = cell.grid_disk(&name).map_or(size_bytes, |disk| disk.size_bytes());
            lines.extend(told_size(&name, size_bytes, size_now));
        }
        if settings.labels != GridDiskLabels::default() {
            cell.set_grid_disk_labels(&name, settings.labels.clone()).await?;
        }
        if let Some(mode) = settings.flash_log_mode {
            cell.set_flash_log_mode(&name, mode).await?;
        }
        if let Some(purpose) = settings.purpose.filter(|purpose| *purpose == Purpose::Redo) {
            cell.set_purpose(&name, purpose).await?;
        }
        // Last, since the name is how it is found.
        if let Some(new_name) = new_name {
            cell.rename_grid_disk(&name, new_name).await?;
        }
        lines.push(format::altered(ObjectType::GridDisk, new_name.unwrap_or(&name)));
    }
    Ok(())
}

async fn drop_grid_disks(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    let mut names = targets(context, change)?;
    if let Some(prefix) = change.text("prefix") {
        if prefix.is_empty() {
            let what = "prefix='' is the beginning of every name";
            return Err(Refusal::new(ErrorCode::InvalidValue, what, Some("DROP GRIDDISK ALL drops all of them")));
        }
        let prefix = prefix.to_lowercase();
        names.retain(|name| name.to_lowercase().starts_with(&prefix));
        if names.is_empty() {
            let what = format!("no grid disk has a name that begins with {prefix}");
            return Err(Refusal::new(ErrorCode::NoSuchObject, what, Some("LIST GRIDDISK shows them all")));
        }
    }
    for name in names {
        let given_up = context.cell.last_copy(&name);
        context.cell.drop_grid_disk(&name, change.force).await?;
        lines.push(format::dropped(ObjectType::GridDisk, &name));
        lines.extend(given_up.map(|what| format!("GridDisk {name}: {what} is given up")));
    }
    Ok(())
}

/// CREATE and DROP of a pinned range: the latter says no policy, so that the grid disk's counts there.
async fn pin(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    let Target::Names(names) = &change.target else { return Ok(()) };
    let policy = change.choice("cachingPolicy").map(policy_named).transpose()?;
    let start = change.size_bytes("offset").unwrap_or(0);
    let end = start.saturating_add(change.size_bytes("length").unwrap_or(0));
    for name in names {
        context.cell.pin(name, start..end, policy).await?;
        lines.push(match policy {
            Some(_) => format::created(ObjectType::Pin, name),
            None => format::dropped(ObjectType::Pin, name),
        });
    }
    Ok(())
}

async fn create_flash_cache(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    let on = change.list("cellDisk").unwrap_or(&[]);
    let size_bytes = change.size_bytes("size");
    context.cell.create_flash_cache(size_bytes, on).await.map_err(|error| too_large(context, size_bytes, on, error))?;
    lines.push(format::created(ObjectType::FlashCache, &flash_cache_name(&context.cell_name())));
    lines.extend(context.cell.other_blocks());
    Ok(())
}

/// A size that does not fit: the largest that would.
fn too_large(context: &Context, wanted: Option<u64>, on: &[String], error: AdminError) -> Refusal {
    let most = context.cell.flash_cache_bytes_max(on);
    match (&error, wanted, most) {
        (AdminError::Store(GridDiskError::NoSpace { .. }), Some(wanted), Some(most)) => {
            let text = cellcli::answer::size_text;
            let what = format!(
                "size={} is more than the flash has free: the largest possible is {}",
                text(wanted),
                text(most)
            );
            let hint = format!("CREATE FLASHCACHE ALL SIZE={}, or without a size", text(most));
            Refusal::new(ErrorCode::NoSpace, what, Some(&hint))
        }
        _ => error.into(),
    }
}

async fn create_flash_log(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    if let Target::All(Some(DiskType::HardDisk)) = change.target {
        return Err(Refusal::new(ErrorCode::InvalidValue, "the flash log lies on flash", Some("CREATE FLASHLOG ALL")));
    }
    let on = change.list("cellDisk").unwrap_or(&[]);
    context.cell.create_flash_log(change.size_bytes("size"), on).await?;
    lines.push(format::created(ObjectType::FlashLog, &flash_log_name(&context.cell_name())));
    Ok(())
}

fn check_flash_log(context: &Context) -> Step {
    if context.cell.store().catalog().flash_log.is_some() {
        return Ok(());
    }
    Err(Refusal::new(ErrorCode::NoSuchObject, "there is no flash log", Some("CREATE FLASHLOG ALL")))
}

async fn alter_flash_log(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    check_flash_log(context)?;
    if let Some(limit_ms) = change.number("outlierLimit") {
        let limit_ms = u32::try_from(limit_ms).ok().filter(|ms| *ms > 0).ok_or_else(|| {
            let what = format!("outlierLimit={limit_ms} is no number of milliseconds it can be");
            Refusal::new(ErrorCode::InvalidValue, what, Some("the usual limit is 500"))
        })?;
        context.cell.set_outlier_limit(limit_ms).await?;
    }
    lines.push(format::altered(ObjectType::FlashLog, &flash_log_name(&context.cell_name())));
    Ok(())
}

async fn drop_flash_log(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    check_flash_log(context)?;
    context.cell.drop_flash_log(change.force).await?;
    lines.push(format::dropped(ObjectType::FlashLog, &flash_log_name(&context.cell_name())));
    Ok(())
}

/// FLUSH, to its end unless NOWAIT was given, or CANCEL FLUSH, of the grid disks named or of all.
pub(super) async fn flush(context: &Arc<Context>, operation: Operation, names: &[String], no_wait: bool) -> Step {
    match operation {
        Operation::Flush if no_wait => {
            let (cell, names) = (context.cell.clone(), names.to_vec());
            context.world.spawn.spawn(Box::pin(async move {
                if let Err(error) = cell.flush_flash_cache(&names, &mut |_, _| ()).await {
                    tracing::warn!(%error, "a flush of the flash cache that nobody waits for");
                }
            }));
        }
        Operation::Flush => {
            let mut progress = |done: u64, all: u64| tracing::info!(done, all, "flush of the flash cache, bytes");
            context.cell.flush_flash_cache(names, &mut progress).await?;
        }
        _ => context.cell.cancel_flush(names).await?,
    }
    Ok(())
}

async fn drop_flash_cache(context: &Arc<Context>, lines: &mut Vec<String>) -> Step {
    let name = flash_cache_name(&context.cell_name());
    if context.cell.store().catalog().flash_cache.is_none() {
        return Err(Refusal::new(ErrorCode::NoSuchObject, "there is no flash cache", None));
    }
    context.cell.drop_flash_cache().await?;
    lines.push(format::dropped(ObjectType::FlashCache, &name));
    Ok(())
}

/// With a size: drop and make again, as the vendor's. Without: the members become those named, and the others keep what they
/// hold.
async fn alter_flash_cache(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    if let Some(operation @ (Operation::Flush | Operation::CancelFlush)) = change.operation {
        if context.cell.store().catalog().flash_cache.is_none() {
            return Err(Refusal::new(
                ErrorCode::NoSuchObject,
                "there is no flash cache",
                Some("CREATE FLASHCACHE ALL"),
            ));
        }
        let more = change.list("cellDisk").map(|disks| flushes_more(context, disks)).transpose()?;
        flush(context, operation, &[], change.no_wait).await?;
        lines.push(format::altered(ObjectType::FlashCache, &flash_cache_name(&context.cell_name())));
        if more == Some(true) {
            lines.push("All of the flash cache, since what is dirty is on several of its cell disks.".to_owned());
        }
        return Ok(());
    }
    let catalog = context.cell.store().catalog();
    let Some(before) = &catalog.flash_cache else {
        return Err(Refusal::new(ErrorCode::NoSuchObject, "there is no flash cache", Some("CREATE FLASHCACHE ALL")));
    };
    let name_of = |id: &DeviceId| catalog.members.get(id).map(|member| member.name.clone());
    let same_disks: Vec<String> = before.regions.keys().filter_map(name_of).collect();
    let on: Vec<String> = match (&change.target, change.list("cellDisk")) {
        (_, Some(disks)) => disks.to_vec(),
        (Target::All(_), None) => Vec::new(),
        (_, None) => same_disks,
    };
    if let Some(size_bytes) = change.size_bytes("size") {
        context.cell.drop_flash_cache().await?;
        context.cell.create_flash_cache(Some(size_bytes), &on).await?;
    } else {
        let mut progress = |done: u64, all: u64| tracing::info!(done, all, "change of the flash cache, bytes destaged");
        context.cell.change_flash_cache(&on, &mut progress).await?;
    }
    lines.push(format::altered(ObjectType::FlashCache, &flash_cache_name(&catalog.cell_name)));
    Ok(())
}

/// Whether a flush, which is of the whole cache, is of more than these cell disks.
fn flushes_more(context: &Context, disks: &[String]) -> Step<bool> {
    if disks.is_empty() {
        let what = "cellDisk='' names no cell disk";
        return Err(Refusal::new(ErrorCode::InvalidValue, what, Some("leave it out for all of the flash cache")));
    }
    let catalog = context.cell.store().catalog();
    let member = |name: &String| catalog.members.iter().find(|(_, it)| it.name.eq_ignore_ascii_case(name));
    if let Some(name) = disks.iter().find(|name| member(name).is_none()) {
        return Err(Refusal::missing(ObjectType::CellDisk, name));
    }
    let named: Vec<DeviceId> = disks.iter().filter_map(|name| member(name).map(|(id, _)| *id)).collect();
    let mut all = catalog.flash_cache.iter().flat_map(|cache| cache.regions.keys());
    Ok(!all.all(|id| named.contains(id)))
}
