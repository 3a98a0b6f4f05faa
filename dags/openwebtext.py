"""OpenWebText, rebuilt: from Reddit submissions to token shards, with one task per stage.

`collect` → `fetch` → `extract` → `clean` → `dedupe` → `export` → `tokenize` → `report` → `verify` →
`publish`, `train`

Each stage runs as `PYTHON -m owt_pipeline run RUN --until STAGE` with the flags of the parameters
below. All other options are in the TOML file `settings`, which every worker has to be able to read.
By default it is the run's own file. Parameters override it.

**The interpreter** belongs to an environment with `owt-pipeline` and its extra `pipeline`. It is
never Airflow's own, because their pinned packages conflict. The Airflow variable `owt_python` names
it (`airflow variables set owt_python /opt/owt/.venv/bin/python`, or `AIRFLOW_VAR_OWT_PYTHON` in the
environment). A run's parameters cannot choose it.

**Triggering again is cheap.** Finished stages are skipped, and an interrupted stage continues at
the shard where it stopped. So trigger a failed run again with the same folder; retries lose
nothing. A changed parameter reruns its stage and the later stages.

**One DAG run per folder.** Runs of different folders work at the same time. A second run of the
same folder is refused, and Airflow retries its task.

**Assets.** `export`, `tokenize` and `report` update the assets `owt_corpus`, `owt_tokens` and
`owt_report`, with the run's folder as extra (`run`). Schedule other DAGs on them.

**Runners.** `FnApiRunner` runs on the worker itself, with `workers` processes. For any other
runner, `run` is a bucket that all its machines can reach, and `beam_flags` has Beam's flags, such
as `{"project": "p", "region": "europe-west1", "temp_location": "gs://b/tmp"}`. On Dataflow, the
task submits the job and is deferred. Each minute it takes a worker for a few seconds to look
whether the job has ended.

**After the report,** `verify` checks every count and checksum. `publish` sends the corpus to the
Hugging Face Hub if the parameter names a dataset, and `train` trains a GPT-2 if `model` names a
folder; otherwise they are skipped.

This DAG has no schedule: `openwebtext_monthly.py` triggers it for each month's dump.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, Asset, BaseOperator, Param, Variable, chain
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

STAGES = ("collect", "fetch", "extract", "clean", "dedupe", "export", "tokenize", "report")
"""The stages in order."""

FLAGS = ("dumps", "links", "add", "pages_from", "num_shards", "min_tokens", "workers")
"""The parameters that are flags of `owt run`."""

ASSETS = {
    "export": Asset("owt_corpus"),
    "tokenize": Asset("owt_tokens"),
    "report": Asset("owt_report"),
}
"""The asset that a stage updates."""

RUNNING = 4
"""Exit code of a stage whose job on Dataflow is running."""

# The first is the default.
RUNNERS = ("FnApiRunner", "DataflowRunner", "FlinkRunner", "SparkRunner", "PortableRunner")


def params() -> dict[str, Param]:
    """Return the parameters of a run; the flag of an empty one is left out."""

    def files(description: str) -> Param:
        """Return a parameter for a list of paths."""
        return Param([], type="array", items={"type": "string"}, description=description)

    def number(minimum: int, description: str) -> Param:
        """Return a parameter for a whole number, which may be empty."""
        return Param(None, type=["null", "integer"], minimum=minimum, description=description)

    return {
        "run": Param(
            type="string",
            minLength=1,
            description="folder of the run: a local path, gs:// or s3://",
        ),
        "dumps": files("Reddit submission dumps: .zst, .xz, .bz2, .gz or plain; globs are allowed"),
        "links": files("tables of links, or lists of URLs, one per line"),
        "add": Param(
            False, type="boolean", description="add the sources that the run does not have yet"
        ),
        "pages_from": files("WARC files to take pages from, instead of the web"),
        "num_shards": number(1, "shards of the new generation"),
        "min_tokens": number(0, "documents with fewer tokens are rejected"),
        "workers": number(1, "processes for CPU-bound work; empty: all cores"),
        "settings": Param(
            None, type=["null", "string"], pattern=r"\.toml$", description="settings in TOML"
        ),
        "runner": Param(RUNNERS[0], type="string", enum=list(RUNNERS), description="Beam's runner"),
        "beam_flags": Param({}, type="object", description="further flags of Beam, by name"),
        "verify": Param(
            True,
            type="boolean",
            description="read and check every byte before publishing or training",
        ),
        "publish": Param(
            "",
            type="string",
            pattern=r"^(hf://[^/\s]+/[^/\s]+)?$",
            description="dataset to publish: hf://OWNER/NAME",
        ),
        "urls_only": Param(
            False, type="boolean", description="publish the list of URLs without the texts"
        ),
        "model": Param(
            None, type=["null", "string"], description="folder of the model to train on the tokens"
        ),
        "train_flags": Param(
            {}, type="object", description='flags of the trainer, by name: {"preset": "tiny"}'
        ),
    }


def flags(values: dict[str, Any]) -> list[str]:
    """Return command-line flags: one per item of a list, and none for None and False."""
    words: list[str] = []
    for name, value in values.items():
        items = value if isinstance(value, list) else [value]
        for item in items:
            if item is True:
                words.append(f"--{name}")
            elif item is not None and item is not False:
                words.append(f"--{name}={item}")
    return words


class RunProgram(BaseOperator):
    """Runs `PYTHON -m ARGUMENTS`, again and again while it leaves a job running on Dataflow.

    Args:
      arguments: function from the parameters to the arguments; it returns None to skip the task.
      **options: those of every operator.
    """

    poll_interval = timedelta(minutes=1)

    def __init__(
        self, *, arguments: Callable[[dict[str, Any]], list[str] | None], **options: Any
    ) -> None:
        super().__init__(**options)
        self.arguments = arguments
        self.hook = SubprocessHook()

    def execute(self, context: Any, event: Any = None) -> None:
        """Run the program; raise if it fails, and update the task's assets if it succeeds."""
        params = context["params"]
        arguments = self.arguments(params)
        if arguments is None:
            raise AirflowSkipException("the run's parameters do not ask for it")
        python = Variable.get("owt_python", default="python3")
        result = self.hook.run_command([python, "-m", *arguments])
        if result.exit_code == RUNNING:
            # A deferred task takes no worker. The same command then reports how the job ended.
            self.defer(trigger=TimeDeltaTrigger(self.poll_interval), method_name="execute")
        if result.exit_code:
            command = " ".join(arguments[:2])
            raise AirflowException(
                f"{command} ended with exit code {result.exit_code}: {result.output}"
            )
        for asset in self.outlets:
            context["outlet_events"][asset].extra = {"run": params["run"]}

    def on_kill(self) -> None:
        """Stop the program when Airflow stops the task."""
        self.hook.send_sigterm()


def run_stage(stage: str, params: dict[str, Any]) -> list[str]:
    """Return the arguments that run the stages up to `stage`."""
    runner = params["runner"]
    beam_flags = {"runner": runner, **params["beam_flags"]}
    if runner == "DataflowRunner":
        # The program ends once the job is submitted.
        beam_flags["no_wait_until_finish"] = True
    stage_flags = {name: params[name] for name in FLAGS}
    command = ["owt_pipeline", "run", params["run"]]
    if params["settings"]:
        command.append(params["settings"])
    return [*command, "--until", stage, *flags({**beam_flags, **stage_flags})]


def verify(params: dict[str, Any]) -> list[str] | None:
    """Return the arguments that check the run; None if the parameters leave it out."""
    if not params["verify"]:
        return None
    return ["owt_pipeline", "verify", params["run"]]


def publish(params: dict[str, Any]) -> list[str] | None:
    """Return the arguments that publish the corpus; None without a name for the dataset."""
    if not params["publish"]:
        return None
    command = ["owt_pipeline", "publish", params["run"], params["publish"], "--yes"]
    if params["urls_only"]:
        command.append("--urls_only")
    return command


def train(params: dict[str, Any]) -> list[str] | None:
    """Return the arguments that train a model on the tokens; None without a folder for it."""
    if not params["model"]:
        return None
    tokens = f"{params['run'].rstrip('/')}/tokens"
    train_flags = {"data": tokens, "out": params["model"], **params["train_flags"]}
    return ["trainer", *flags(train_flags)]


with DAG(
    dag_id="openwebtext",
    description="Rebuild OpenWebText from Reddit submissions",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    params=params(),
    default_args={
        "retries": 2,
        "retry_delay": timedelta(minutes=1),
        "retry_exponential_backoff": True,
    },
    tags=["openwebtext", "beam"],
) as dag:
    stages = []
    for stage in STAGES:
        outlets = [ASSETS[stage]] if stage in ASSETS else []
        program = partial(run_stage, stage)
        stages.append(RunProgram(task_id=stage, arguments=program, outlets=outlets))
    # With this rule, a task that is skipped does not skip the tasks after it.
    verified, published, trained = (
        RunProgram(task_id=program.__name__, arguments=program, trigger_rule="none_failed")
        for program in (verify, publish, train)
    )
    chain(*stages, verified, [published, trained])
