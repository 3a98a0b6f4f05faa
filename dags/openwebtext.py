"""OpenWebText, rebuilt: from Reddit submissions to token shards, a task a stage.

`collect` → `fetch` → `extract` → `clean` → `dedupe` → `export` → `tokenize` → `report`

Each task starts its stage as `PYTHON -m owt_pipeline.STAGE.stage` with the flags of the parameters below;
all other options of the stages are in the TOML file of `config` (which every worker has to be able to
read), and a parameter that is set goes over it. `python` is the interpreter of an environment with
`owt-pipeline` installed: not Airflow's own, whose pins clash with it.

**Triggering again is cheap.** A finished stage does nothing, and an interrupted one continues at
the shard where it stopped. So a failed run is mended by triggering it again with the same `workdir`, and
retries lose nothing. A changed parameter runs its stage and those after it again.

**Runners.** `FnApiRunner` runs on the worker itself, with `workers` processes. With any other, `workdir` is a
bucket that all its machines reach, and `beam_flags` holds what Beam wants to know, for instance
`{"project": "p", "region": "europe-west1", "temp_location": "gs://b/tmp"}`.

There is no schedule: a dump is a month, and there are few. To add one, give `workdir` a default first.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from airflow.providers.apache.beam.operators.beam import BeamRunPythonPipelineOperator
from airflow.sdk import DAG, Param, chain

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

FLAGS_OF_ALL = ("workdir", "workers", "config")

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
        "pages_from": files("take pages from these WARC files, not from the web"),
        "num_shards": number(1, "shards of every dataset"),
        "min_tokens": number(0, "documents with fewer tokens are rejected"),
        "workers": number(1, "processes for CPU-bound work; empty: all cores"),
        "config": Param(None, type=["null", "string"], description="TOML file with a table a stage"),
        "python": Param("python3", type="string", minLength=1, description="interpreter with owt-pipeline installed"),
        "runner": Param(RUNNERS[0], type="string", enum=list(RUNNERS), description="Beam's runner"),
        "beam_flags": Param({}, type="object", description="further flags of Beam, by name"),
    }


def flags(stage: str, context: dict[str, Any], jinja_env: object) -> dict[str, Any]:
    """The flags of `stage`, for the operator to write out: a list as a flag an item, None as no flag."""
    given = context["params"]
    return {**given["beam_flags"], **{name: given[name] for name in (*FLAGS_OF_ALL, *STAGES[stage])}}


def runner(context: dict[str, Any], jinja_env: object) -> str:
    """The runner as the operator and Beam should see it.

    By the name `DataflowRunner` the operator takes a program for one Dataflow job, and lets go of it when it
    reads that job's id in the output. A stage may start several, and writes its manifest after the last. By
    the qualified name, which Beam takes as well, the operator waits for the end of the program.
    """
    name: str = context["params"]["runner"]
    return "apache_beam.runners.dataflow.dataflow_runner.DataflowRunner" if name == "DataflowRunner" else name


class RunStage(BeamRunPythonPipelineOperator):
    """The Beam operator, with an interpreter that a parameter of the run can choose."""

    template_fields = (*BeamRunPythonPipelineOperator.template_fields, "py_interpreter")


with DAG(
    dag_id="openwebtext",
    description="Rebuild OpenWebText from Reddit submissions",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,  # one run at a time may hold a working directory
    params=params(),
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1), "retry_exponential_backoff": True},
    tags=["openwebtext", "beam"],
) as dag:
    chain(
        *(
            RunStage(
                task_id=stage,
                py_interpreter="{{ params.python }}",
                py_options=["-m"],
                py_file=f"owt_pipeline.{stage}.stage",
                runner=runner,
                pipeline_options=partial(flags, stage),
            )
            for stage in STAGES
        )
    )
