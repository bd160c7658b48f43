"""How nodes are switched off and on, where a launcher cannot do it by itself."""

from __future__ import annotations

import shlex
from typing import Annotated

from pydantic import AfterValidator, Field

from pytest_mnode.spec.fields import Page, Seconds, Text


def _is_command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; accepted: a command, as for a shell") from None
    if not any("{node}" in word for word in words):
        raise ValueError(
            f"{text!r} does not say which node; accepted: a command with {{node}} in it, such as "
            "ipmitool -H {node}-bmc chassis power off"
        )
    return text


Command = Annotated[Text, AfterValidator(_is_command)]


class Power(Page):
    """Commands that switch a node, run where pytest runs, without a shell; {node} is its name.

    Not off and on, which YAML takes for no and yes.
    """

    switch_off: Command
    """As a pulled plug, such as ipmitool -H {node}-bmc chassis power off."""
    switch_on: Command
    """Boots it again."""
    within_s: Seconds = Field(600.0, alias="within")
    """From the command that boots it until commands run on it again, such as 10 min."""
    command_within_s: Seconds = Field(60.0, alias="command_within")
    """The longest that either command itself may take."""
