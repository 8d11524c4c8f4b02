"""What schemathesis asks in another way: a cell that is told to stop, or to start again, answers nothing more at its port."""

import re

import schemathesis


@schemathesis.hook
def before_call(_context, case, _kwargs):
    body = case.body
    if isinstance(body, dict) and "SERVICES" in str(body.get("operation", "")).upper():
        operation = re.sub("SHUTDOWN|RESTART", "STARTUP", str(body["operation"]), flags=re.IGNORECASE)
        case.body = {**body, "operation": operation}
