//! The row of CELL. Its services are one process: RS and MS are kept for scripts that name them.

use super::{Attribute, Form, Kind, ObjectSpec, ObjectType, OperationSpec, TargetKind, Verb};
use crate::command::{Flag, Operation, Service, ServiceAction};

const SERVICE_STATUS: Kind = Kind::Status(&["running", "stopped"]);

const ATTRIBUTES: &[Attribute] = &[
    Attribute::new("name", Kind::Name, "name of the cell").modifiable().default_column(),
    Attribute::new("cellVersion", Kind::Text, "version of the cell software"),
    Attribute::new("comment", Kind::Text, "free text").modifiable(),
    Attribute::new("cpuCount", Kind::Number, "processors the cell may use"),
    Attribute::new("diagHistoryDays", Kind::Number, "days diagnostic files are kept"),
    Attribute::new("fanCount", Kind::Text, "fans working and installed"),
    Attribute::new("fanStatus", Kind::Status(&["normal", "warning", "critical"]), "state of the fans"),
    Attribute::new("flashCacheCompress", Kind::Status(&["TRUE", "FALSE"]), "whether the flash compresses"),
    Attribute::new("flashCacheMode", Kind::Status(&["WriteThrough", "WriteBack"]), "how writes use the flash cache")
        .modifiable(),
    Attribute::new("id", Kind::Name, "identity of the cell"),
    Attribute::new("instanceStamp", Kind::Name, "changes when un-flushed data may be gone; exports announce it").own(),
    Attribute::new("makeModel", Kind::Text, "make and model of the machine"),
    Attribute::new("metricCollection", Kind::Status(&["TRUE", "FALSE"]), "whether the history of metrics is collected")
        .modifiable(),
    Attribute::new("metricHistoryDays", Kind::Number, "days metric history is kept").modifiable(),
    Attribute::new("notificationMethod", Kind::List, "how alerts are sent besides what cell.toml names: mail, or none")
        .modifiable(),
    Attribute::new("notificationPolicy", Kind::List, "which alerts are sent: critical, warning, info, clear")
        .modifiable(),
    Attribute::new("releaseVersion", Kind::Text, "release of the cell software"),
    Attribute::new("smtpFrom", Kind::Text, "name mails of alerts come from").modifiable(),
    Attribute::new("smtpFromAddr", Kind::Text, "mail address alerts come from").modifiable(),
    Attribute::new("smtpPort", Kind::Number, "port of the mail server, 25 unless stated").modifiable(),
    Attribute::new("smtpServer", Kind::Text, "mail server for alerts").modifiable(),
    Attribute::new("smtpToAddr", Kind::List, "mail addresses alerts go to").modifiable(),
    Attribute::new(
        "smtpUseSSL",
        Kind::Status(&["TRUE", "FALSE"]),
        "whether mail goes over TLS: at port 465 from the start, elsewhere by STARTTLS",
    )
    .modifiable(),
    Attribute::new("status", Kind::Status(&["online", "offline"]), "state of the cell").default_column(),
    Attribute::new("temperatureReading", Kind::Number, "temperature in degrees Celsius"),
    Attribute::new("upTime", Kind::Text, "time since start"),
    Attribute::new("cellsrvStatus", SERVICE_STATUS, "state of the block server"),
    Attribute::new("msStatus", SERVICE_STATUS, "state of the management server"),
    Attribute::new("rsStatus", SERVICE_STATUS, "state of the restart server"),
];

const ACTIONS: [ServiceAction; 3] = [ServiceAction::Shutdown, ServiceAction::Startup, ServiceAction::Restart];
const SERVICES: [Service; 4] = [Service::Rs, Service::Ms, Service::Cellsrv, Service::All];

const OPERATIONS: &[OperationSpec] = &[SERVICES_OPERATION, VALIDATE_MAIL];

const VALIDATE_MAIL: OperationSpec = OperationSpec {
    words: &[&["VALIDATE"], &["MAIL"]],
    build: |_| Operation::ValidateMail,
    flags: &[],
    about: "send a mail to each address of smtpToAddr, now, and say what the server said",
};

const SERVICES_OPERATION: OperationSpec = OperationSpec {
    words: &[&["SHUTDOWN", "STARTUP", "RESTART"], &["SERVICES"], &["RS", "MS", "CELLSRV", "ALL"]],
    build: |chosen| Operation::Services { action: ACTIONS[chosen[0]], service: SERVICES[chosen[2]] },
    flags: &[Flag::Force],
    about: "stop the cell, or stop it and start it again; FORCE though clients are connected. It is one process: CELLSRV stands for ALL, RESTART of MS \
            takes the certificates that are there now, and whatever else is of MS or RS alone is refused",
};

pub(super) const CELL: ObjectSpec = ObjectSpec {
    object: ObjectType::Cell,
    word: "CELL",
    title: "Cell",
    title_with_name: true,
    xml_element: "cell",
    about: "the cell itself",
    attributes: ATTRIBUTES,
    forms: &[Form::new(Verb::Alter, TargetKind::Whole, "change the cell, or stop and start its services")
        .modifiable_attributes()
        .operations(OPERATIONS)
        .needs_change()],
};
