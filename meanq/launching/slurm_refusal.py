"""Why SLURM refuses jobs: its whole message in one line, and the field of the launcher that it is about."""

import re
from collections.abc import Mapping
from typing import Any

_ACCOUNTS = "`sacctmgr show associations user=$USER` lists your accounts and what they may use"
_GPUS = "`sinfo -o '%N %G'` shows the GPUs; write 0 for runs that need none, or the type, too: a100:1"
_LATER = "wait until some of your jobs have ended, or put several runs in a job with hydra.launcher.runs_per_job"
_NODES = "`sinfo -o '%N %c %m %f'` shows the cores, memory and features of nodes"
_QOS = "`sacctmgr show qos` lists them and their limits"
_TIMES = "`sinfo -o '%P %l'` shows the time limits of partitions"

# A pattern in what sbatch says, the field that it is about ("": none), and a remedy. The first that matches counts.
# Names of limits come first: SLURM adds a sentence to them that mentions account, QOS, submit and time limits at once.
_RULES = (
    (r"(?i)unable to contact|connection refused|connect failure|timed out", "", "SLURM does not answer; try later"),
    (r"QOS\w*Submit", "qos", _LATER),
    (r"\w+Submit", "account", _LATER),
    (r"(QOS|Assoc)\w*Wall", "timeout_min", _TIMES),
    (r"(QOS|Assoc)\w*(GRES|Gres)", "gpus_per_node", _GPUS),
    (r"(QOS|Assoc)\w*Mem", "mem_gb", _QOS),
    (r"(QOS|Assoc)\w*C[Pp][Uu]", "cpus_per_task", _QOS),
    (r"job submit limit", "qos", f"{_QOS}; {_ACCOUNTS}"),
    (r"(?i)\bqos\b", "qos", _QOS),
    (r"(?i)\baccount\b", "account", _ACCOUNTS),
    (r"(?i)\bdependency\b", "dependency", "`squeue --me` lists your jobs"),
    (r"(?i)\b(gpus?|gres|tres)\b", "gpus_per_node", _GPUS),
    (r"(?i)time ?limit|wall ?time", "timeout_min", _TIMES),
    (r"(?i)\bpartition\b", "partition", "`sinfo -s` lists the partitions"),
    (r"(?i)\bfeatures?\b|\bconstraint\b", "constraint", _NODES),
    (r"(?i)\bmem(ory)?\b", "mem_gb", _NODES),
    (r"(?i)\b(processors?|cpus?|cores?)\b", "cpus_per_task", _NODES),
    (r"(?i)\bnode name\b", "exclude", _NODES),
)
_FEWER_MAY_PASS = re.compile(r"MaxSubmit|GrpSubmit|Invalid job array|Resource temporarily unavailable")
_OPTION = re.compile(r"""(?i)option '--([a-z-]+)|invalid (?:\w+ )*(?:"[^"]*" )?(?:for )?--([a-z-]+)""")
_PREFIX = re.compile(r"^sbatch: *((error|fatal|lua): *)*(Batch job submission failed: *)?")
_FIELDS = {"time": "timeout_min", "mem": "mem_gb", "job-name": "name", "signal": "signal_delay_s"}  # by option


def is_submit_limit(said: str) -> bool:
    """Whether SLURM might accept fewer jobs."""
    names_a_limit = re.search(r"\b(QOS|Assoc)(Max|Min|Grp)", said)
    return bool(_FEWER_MAY_PASS.search(said)) or ("job submit limit" in said and not names_a_limit)


def explain_rejection(said: str, fields: Mapping[str, Any]) -> str:
    """Quote all that sbatch said, and name the field that it is about."""
    lines = [_PREFIX.sub("", line).strip().rstrip(".") for line in said.splitlines()]
    quoted = "; ".join(dict.fromkeys(line for line in lines if line))
    refused = f"SLURM refused the jobs ({quoted or 'sbatch gave no reason'})"
    if match := _OPTION.search(said):
        option = match[1] or match[2]
        field, remedy = _FIELDS.get(option, option.replace("-", "_")), f"`man sbatch` describes --{option}"
        if field not in fields:
            given = fields.get("additional_parameters") or {}
            value, field = given.get(option, given.get(field)), f"additional_parameters.{option}"
            return f"hydra.launcher.{field}={_shown(value)}: {refused}; `man sbatch` lists the options"
        return f"hydra.launcher.{field}={_shown(fields[field])}: {refused}; {remedy}"
    for pattern, field, remedy in _RULES:
        if re.search(pattern, said):
            field = "gres" if field == "gpus_per_node" and fields.get("gres") else field
            blamed = f"hydra.launcher.{field}={_shown(fields.get(field))}" if field else "hydra/launcher=slurm"
            return f"{blamed}: {refused}; {remedy}"
    names = ("partition", "gpus_per_node", "cpus_per_task", "mem_gb", "timeout_min")
    asked = ", ".join(f"{name}={_shown(fields.get(name))}" for name in names)
    return f"hydra/launcher=slurm: {refused}; asked for {asked}"


def _shown(value: Any) -> str:
    """As it is written on the command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
