"""The flags of `holdfast run`: torchrun's, each with its `PET_*` variable, and a few of our own.

It decides what a command line says, not what it means: values arrive as the user wrote them, and `given` names those
that the user did give, by flag or by variable, because a given value binds where a default only suggests. The table is
our own, since torchrun's parser cannot be had without importing torch; a test compares the two on every run.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from holdfast.cli.parser import Parser, mark_own
from holdfast.model.errors import UsageError

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
POLICIES = ("restart", "stop")
START_METHODS = ("spawn", "fork", "forkserver")
NUMA_BINDINGS = ("node", "socket", "exclusive", "core-complex")
COMPLETION_SHELLS = ("bash", "zsh", "tcsh", "fish", "powershell")


class Difference(NamedTuple):
    """One place where `holdfast run` does something else than torchrun when the flag is not given."""

    flag: str
    torchrun: str
    holdfast: str
    why: str
    differs_in_default: bool = False  # whether the parsers' own defaults differ


DELIBERATE_DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "--max-restarts",
        "0",
        "not set: a budget that progress refills (--budget)",
        "A run that moves on may survive any number of failures, and a crash loop still ends soon. A given number is "
        "a hard limit, counted over the whole job.",
        differs_in_default=True,
    ),
    Difference(
        "--start-method",
        "spawn",
        "not set: workers are forked from a nursery that has imported torch",
        "Importing torch and what the first optimizer needs is most of a restart. A given `spawn` or `forkserver` "
        "starts a fresh interpreter for every worker.",
        differs_in_default=True,
    ),
    Difference(
        "survivors of a failure",
        "SIGTERM, then SIGKILL after 30 s",
        "SIGTERM to those that can hear it, SIGKILL after 0.05 s (--grace)",
        "A survivor that is blocked in a collective never runs its Python handler; what it would save there is "
        "lost to the failed step anyway. When the user stops the job, --shutdown-timeout holds as it does in torchrun.",
    ),
    Difference(
        "a failure before the first step",
        "uses up a restart like any other",
        "an exception of the script ends the job at once",
        "A misspelt option fails again every time.",
    ),
    Difference(
        "--monitor-interval",
        "0.1 s between two looks at the workers",
        "accepted; nothing is polled",
        "Deaths are events of the kernel here and arrive at once.",
    ),
    Difference(
        "--rdzv-backend, --rdzv-conf",
        "a rendezvous also for one node",
        "checked and accepted; one node needs no rendezvous",
        "Every incarnation gets an empty store of its own. A static endpoint still sets MASTER_ADDR and MASTER_PORT.",
    ),
    Difference(
        "--local-addr",
        "the machine's full host name",
        "127.0.0.1",
        "All workers are on this machine, whatever its name resolves to.",
    ),
    Difference(
        "--event-log-handler",
        "a handler of torchelastic's own events",
        "accepted; anything but `null` is pointed out",
        "Those events are torchelastic's. What happened stands in Holdfast's journal.",
    ),
    Difference(
        "--logs-specs",
        "a plug-in that decides where output goes",
        "refused",
        "The plug-in is a class of torch, which the launcher never imports.",
    ),
    Difference(
        "abbreviations of flags with two spellings",
        "`--nproc` is ambiguous under Python 3.11, where dashes and underscores part ways later",
        "accepted under every Python",
        "Both spellings are the same flag.",
    ),
)


class Flag(NamedTuple):
    """One row of the table. The first long name is the one torchrun's variable is called after."""

    names: str
    help: str
    convert: Callable[[str], Any] = str
    default: Any = None
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    switch: bool = False
    variable: bool = True

    @property
    def dest(self) -> str:
        return next(name for name in self.names.split() if name.startswith("--")).lstrip("-").replace("-", "_")


def comma_separated(text: str) -> list[str]:
    """Parts between commas; two commas are one that belongs to a part."""
    return [part.replace("\0", ",") for part in text.replace(",,", "\0").split(",")]


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise ValueError(text)
    return number


_count.__name__ = "count"
_seconds.__name__ = "number of seconds"

_NODES = "Nodes and rendezvous"
_WORKERS = "Workers"
_OUTPUT = "Output"
_OURS = "Holdfast"

TORCHRUN_FLAGS: tuple[tuple[str, tuple[Flag, ...]], ...] = (
    (
        _WORKERS,
        (
            Flag(
                "--nproc-per-node --nproc_per_node",
                "workers to start: a number, `gpu`, `cpu`, or `auto` for GPUs where there are any (default: 1)",
                default="1",
                metavar="N",
            ),
            Flag("-m --module", "the script is a module, as with `python -m`", switch=True),
            Flag("--no-python --no_python", "the script is a program; run it without Python", switch=True),
            Flag("--run-path --run_path", "run the script through runpy.run_path", switch=True),
            Flag(
                "--max-restarts --max_restarts",
                "restart this often and never more (default: a budget, see --budget)",
                int,
                metavar="N",
            ),
            Flag(
                "--start-method --start_method",
                "spawn and forkserver: a fresh interpreter per worker; fork: from the nursery (default: the nursery)",
                choices=START_METHODS,
            ),
            Flag(
                "--role", "what the workers are called in ROLE_NAME and in prefixes (default: default)", str, "default"
            ),
            Flag("--monitor-interval --monitor_interval", "accepted; nothing is polled", float, 0.1, "SECONDS"),
            Flag("--event-log-handler --event_log_handler", "accepted; see `holdfast incidents`", str, "null", "NAME"),
            Flag(
                "--numa-binding --numa_binding",
                "bind each worker to processors near its GPU",
                choices=NUMA_BINDINGS,
                variable=False,
            ),
            Flag(
                "--signals-to-handle --signals_to_handle",
                f"signals that stop the job in good order (default: {SIGNALS})",
                str,
                SIGNALS,
                "NAMES",
            ),
            Flag(
                "--shutdown-timeout --shutdown_timeout",
                "how long workers may take to leave when you stop the job (default: 30)",
                int,
                metavar="SECONDS",
            ),
            Flag(
                "--virtual-local-rank --virtual_local_rank",
                "every worker has LOCAL_RANK 0 and sees only its own GPU",
                switch=True,
            ),
        ),
    ),
    (
        _NODES,
        (
            Flag("--nnodes", "1 or 1:1, until several nodes are supported", str, "1:1", "N|MIN:MAX"),
            Flag("--node-rank --node_rank", "0 on a single node", int, 0, "N"),
            Flag(
                "--standalone",
                "a single node that needs nothing from outside, which is what happens anyway",
                switch=True,
            ),
            Flag(
                "--rdzv-backend --rdzv_backend",
                "static, c10d, etcd or etcd-v2 (default: static)",
                str,
                "static",
                "NAME",
            ),
            Flag("--rdzv-endpoint --rdzv_endpoint", "where the nodes meet", str, "", "HOST:PORT"),
            Flag("--rdzv-id --rdzv_id", "TORCHELASTIC_RUN_ID of the job", str, "none", "ID"),
            Flag("--rdzv-conf --rdzv_conf", "settings of the backend", str, "", "KEY=VALUE,..."),
            Flag("--master-addr --master_addr", "MASTER_ADDR, together with --master-port", str, "127.0.0.1", "HOST"),
            Flag("--master-port --master_port", "MASTER_PORT (default: any free port)", int, metavar="PORT"),
            Flag("--local-addr --local_addr", "this node's address (default: 127.0.0.1)", metavar="HOST"),
        ),
    ),
    (
        _OUTPUT,
        (
            Flag(
                "-r --redirects",
                "write output to files: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank as in 0:3,1:1",
                str,
                "0",
                "STREAMS",
            ),
            Flag("-t --tee", "write output to files and show it too; values as for --redirects", str, "0", "STREAMS"),
            Flag("--log-dir --log_dir", "the folder for those files", metavar="FOLDER"),
            Flag(
                "--log-line-prefix-template --log_line_prefix_template",
                "what each line of output starts with; knows ${role_name}, ${local_rank}, ${rank} and ${hostname}",
                str,
                "",
                "TEXT",
            ),
            Flag(
                "--local-ranks-filter --local_ranks_filter",
                "show the output of these local ranks only",
                str,
                "",
                "N,...",
            ),
            Flag(
                "--duplicate-stdout-filters --duplicate_stdout_filters",
                "copy lines of stdout that contain one of these texts to a file of their own",
                comma_separated,
                [],
                "TEXT,...",
            ),
            Flag(
                "--duplicate-stderr-filters --duplicate_stderr_filters",
                "the same for stderr",
                comma_separated,
                [],
                "TEXT,...",
            ),
            Flag("--logs-specs --logs_specs", "not supported", metavar="NAME", variable=False),
        ),
    ),
)

OWN_FLAGS: tuple[Flag, ...] = (
    Flag(
        "--policy", "what to do about a failure: restart the workers, or stop the job", str, "restart", choices=POLICIES
    ),
    Flag("--budget", "restarts in hand; every 10 new steps earn one back (default: 10)", _count, 10, "N"),
    Flag(
        "--spares", "warm processes to keep ready (default: as many as workers, where memory allows)", _count, None, "N"
    ),
    Flag(
        "--spare-context --spare_context",
        "spares hold a CUDA context on the GPU of their rank: faster, for some 600 to 900 MiB of its memory each",
        switch=True,
    ),
    Flag("--grace", "from SIGTERM to SIGKILL for survivors of a failure (default: 0.05)", _seconds, 0.05, "SECONDS"),
    Flag("--name", "the job's name (default: the script's)", metavar="NAME"),
    Flag("--allow-drills --allow_drills", "let `holdfast drill` hurt this job", switch=True),
    Flag("--dry-run --dry_run", "show what would be started, and stop", switch=True),
    Flag("--json", "print documents for programs", switch=True),
)


def run_parser(prog: str = "holdfast run", environ: Mapping[str, str] | None = None) -> Parser:
    parser = Parser(
        prog=prog,
        description="Run a training script on this machine as torchrun does, and keep it running.",
        epilog="Every flag above the last group is torchrun's, with dashes or underscores, and may be set by a PET_* "
        "variable.",
    )
    add_run_arguments(parser, environ)
    return parser


def add_run_arguments(parser: argparse.ArgumentParser, environ: Mapping[str, str] | None = None) -> None:
    """The whole table. `PET_*` variables are read from `environ`, the process's own if there is none."""
    environ = os.environ if environ is None else environ
    given: set[str] = set()
    for title, flags in TORCHRUN_FLAGS:
        group = parser.add_argument_group(title)
        for flag in flags:
            default = flag.default
            variable = f"PET_{flag.dest.upper()}"
            if flag.variable and variable in environ:
                default = _from_variable(flag, variable, environ[variable])
                given.add(flag.dest)
            _add(group, flag, default)
    parser.add_argument(
        "--print-completion",
        "--print_completion",
        action=_PrintCompletion,
        choices=COMPLETION_SHELLS,
        help="print a completion script for this shell (the same as `holdfast completion`)",
    )
    ours = parser.add_argument_group(_OURS)
    for flag in OWN_FLAGS:
        mark_own(_add(ours, flag, flag.default))
    parser.add_argument("training_script", help="what to run")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(given=frozenset(given))


def all_flags() -> Iterable[Flag]:
    for _, flags in TORCHRUN_FLAGS:
        yield from flags
    yield from OWN_FLAGS


class _Given(argparse.Action):
    """Store the value and note that the user gave it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        setattr(namespace, self.dest, self.const if self.nargs == 0 else values)
        namespace.given = namespace.given | {self.dest}


class _PrintCompletion(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        from holdfast.cli.completion import script

        print(script(str(values)))
        parser.exit()


def _add(group: argparse._ActionsContainer, flag: Flag, default: Any) -> argparse.Action:
    if flag.switch:
        return group.add_argument(
            *flag.names.split(), action=_Given, nargs=0, const=True, default=bool(default), help=_escaped(flag.help)
        )
    return group.add_argument(
        *flag.names.split(),
        action=_Given,
        type=flag.convert,
        default=default,
        choices=flag.choices,
        metavar=flag.metavar,
        help=_escaped(flag.help),
    )


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _from_variable(flag: Flag, variable: str, text: str) -> Any:
    """A variable's value, converted here so that a bad one is reported under its own name."""
    try:
        if flag.switch:
            return bool(int(text))
        value = flag.convert(text)
    except ValueError:
        wanted = "0 or 1" if flag.switch else "a number"
        raise UsageError(
            f"{text!r} is not {wanted}", where=variable, remedy=f"Set it to {wanted}, or unset it."
        ) from None
    if flag.choices and value not in flag.choices:
        raise UsageError(
            f"{text!r} is not one of {', '.join(flag.choices)}", where=variable, remedy="Change it, or unset it."
        )
    return value
