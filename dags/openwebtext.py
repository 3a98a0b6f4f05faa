"""OpenWebText, rebuilt: from Reddit submissions to token shards, a task a stage.

`collect` → `fetch` → `extract` → `clean` → `dedupe` → `export` → `tokenize` → `report` → `verify` → `publish`, `train`

Each stage is started as `PYTHON -m owt_pipeline.STAGE.stage` with the flags of the parameters below; every other
option is in the TOML file of `config` (which every worker has to be able to read), and a parameter that is set
overrides it. `python` is the interpreter of an environment with `owt-pipeline` installed: not Airflow's own, whose
pins clash with it.

**Triggering again is cheap.** A finished stage does nothing, and an interrupted one continues at the shard where it
stopped. So trigger a failed run again with the same `workdir`; retries lose nothing. A changed parameter runs its
stage and those after it again.

**One run a working directory.** Runs of different directories run at the same time. A second run of the same
directory is refused by the directory's lease, and Airflow retries its task.

**Assets.** `export`, `tokenize` and `report` update the assets `owt_corpus`, `owt_tokens` and `owt_report`, with the
run's `workdir` as extra: schedule another DAG by them to continue from there.

**Runners.** `FnApiRunner` runs on the worker itself, with `workers` processes. With any other, `workdir` is a
bucket that all its machines reach, and `beam_flags` holds what Beam wants to know, for instance
`{"project": "p", "region": "europe-west1", "temp_location": "gs://b/tmp"}`. While Dataflow works, the task is deferred:
its launcher runs in the triggerer, and no worker's slot is taken.

**After the report.** `verify` checks every sum and checksum. `publish` sends the corpus to the Hugging Face Hub where
the parameter names a dataset, and `train` trains a GPT-2 where `model` names a folder; without, they are skipped.

There is no schedule here: `openwebtext_monthly.py` triggers this DAG for each month's dump.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from airflow.providers.apache.beam.operators.beam import BeamRunPythonPipelineOperator
from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import DAG, Asset, BaseOperator, Param, chain
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

STAGES = {
    "collect": ("dumps", "url_lists", "num_shards"),
    "fetch": ("pages_from",),
    "extract": (),
    "clean": ("min_tokens",),
    "dedupe": (),
    "export": (),
    "tokenize": (),
    "report": (),
}
"""The stages in order, each with its own flags among the parameters."""

ASSETS = {"export": Asset("owt_corpus"), "tokenize": Asset("owt_tokens"), "report": Asset("owt_report")}
"""What a stage updates."""

FLAGS_OF_ALL = ("workdir", "base", "workers", "config")

RUNNERS = ("FnApiRunner", "DataflowRunner", "FlinkRunner", "SparkRunner", "PortableRunner")


def params() -> dict[str, Param]:
    """The settings of a run; a parameter left empty leaves the flag out."""

    def files(description: str) -> Param:
        return Param([], type="array", items={"type": "string"}, description=description)

    def number(minimum: int, description: str) -> Param:
        return Param(None, type=["null", "integer"], minimum=minimum, description=description)

    return {
        "workdir": Param(type="string", minLength=1, description="folder of the run: a local path, gs:// or s3://"),
        "dumps": files("Reddit submission dumps: .zst, .xz, .bz2, .gz or plain; globs are allowed"),
        "url_lists": files("plain lists of URLs, one a line"),
        "base": files("folders of finished runs to build on: what they have is not made again"),
        "pages_from": files("take pages from these WARC files, not from the web"),
        "num_shards": number(1, "shards of every dataset"),
        "min_tokens": number(0, "documents with fewer tokens are rejected"),
        "workers": number(1, "processes for CPU-bound work; empty: all cores"),
        "config": Param(None, type=["null", "string"], description="TOML file with a table a stage"),
        "python": Param("python3", type="string", minLength=1, description="interpreter with owt-pipeline installed"),
        "runner": Param(RUNNERS[0], type="string", enum=list(RUNNERS), description="Beam's runner"),
        "beam_flags": Param({}, type="object", description="further flags of Beam, by name"),
        "verify": Param(True, type="boolean", description="read every byte again and check it, before what follows"),
        "publish": Param(
            "", type="string", pattern=r"^(hf://[^/\s]+/[^/\s]+)?$", description="dataset to publish: hf://OWNER/NAME"
        ),
        "urls_only": Param(False, type="boolean", description="publish the list of URLs without the texts"),
        "model": Param(None, type=["null", "string"], description="folder of the model to train on the tokens"),
        "train_flags": Param({}, type="object", description='flags of trainer.train, by name: {"preset": "tiny"}'),
    }


def flags(stage: str, context: dict[str, Any], jinja_env: object) -> dict[str, Any]:
    """The flags of `stage`, for the operator to write out: a list as a flag an item, None as no flag."""
    given = context["params"]
    return {**given["beam_flags"], **{name: given[name] for name in (*FLAGS_OF_ALL, *STAGES[stage])}}


def runner(context: dict[str, Any], jinja_env: object) -> str:
    """The runner as the operator and Beam should see it.

    By the name `DataflowRunner` the operator stops the program when it reads a job's id in its output, and asks
    Google for the job's state. But the program has more to do: it holds the working directory's lease and reports what
    came of the job. By the qualified name, which Beam takes as well, the operator waits for the end of the program.
    """
    name: str = context["params"]["runner"]
    return "apache_beam.runners.dataflow.dataflow_runner.DataflowRunner" if name == "DataflowRunner" else name


class RunStage(BeamRunPythonPipelineOperator):
    """The Beam operator, with an interpreter that a parameter of the run can choose; deferred on Dataflow."""

    template_fields = (*BeamRunPythonPipelineOperator.template_fields, "py_interpreter")

    def execute(self, context: Any) -> Any:
        self.deferrable = context["params"]["runner"] == "DataflowRunner"
        return super().execute(context)

    def post_execute(self, context: Any, result: Any = None) -> None:
        """Say with an asset's event which run it is of."""
        for asset in self.outlets:
            context["outlet_events"][asset].extra = {"workdir": context["params"]["workdir"]}


class RunProgram(BaseOperator):
    """Runs `PYTHON -m ARGUMENTS`; skipped where the run's parameters ask for nothing.

    Args:
      arguments: gives the arguments from the parameters; None to skip.
    """

    def __init__(self, *, arguments: Callable[[dict[str, Any]], list[str] | None], **given: Any) -> None:
        super().__init__(**given)
        self.arguments = arguments
        self.hook = SubprocessHook()

    def execute(self, context: Any) -> None:
        params = context["params"]
        arguments = self.arguments(params)
        if arguments is None:
            raise AirflowSkipException("the run's parameters do not ask for it")
        done = self.hook.run_command([params["python"], "-m", *arguments])
        if done.exit_code:
            raise AirflowException(f"{arguments[0]} ended with exit code {done.exit_code}: {done.output}")

    def on_kill(self) -> None:
        self.hook.send_sigterm()


def verify(params: dict[str, Any]) -> list[str] | None:
    return ["owt_pipeline", "verify", "--workdir", params["workdir"]] if params["verify"] else None


def publish(params: dict[str, Any]) -> list[str] | None:
    withheld = ["--urls_only"] if params["urls_only"] else []
    command = ["owt_pipeline", "publish", params["publish"], "--workdir", params["workdir"], "--yes", *withheld]
    return command if params["publish"] else None


def train(params: dict[str, Any]) -> list[str] | None:
    flags = [part for name, value in params["train_flags"].items() for part in (f"--{name}", str(value))]
    tokens = f"{params['workdir'].rstrip('/')}/tokens"
    return ["trainer.train", "--data", tokens, "--out", params["model"], *flags] if params["model"] else None


with DAG(
    dag_id="openwebtext",
    description="Rebuild OpenWebText from Reddit submissions",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    params=params(),
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1), "retry_exponential_backoff": True},
    tags=["openwebtext", "beam"],
) as dag:
    stages = [
        RunStage(
            task_id=stage,
            py_interpreter="{{ params.python }}",
            py_options=["-m"],
            py_file=f"owt_pipeline.{stage}.stage",
            runner=runner,
            pipeline_options=partial(flags, stage),
            outlets=[ASSETS[stage]] if stage in ASSETS else [],
        )
        for stage in STAGES
    ]
    after = [
        RunProgram(task_id=program.__name__, arguments=program, trigger_rule="none_failed")
        for program in (verify, publish, train)
    ]
    chain(*stages, after[0], after[1:])
