"""Run one stage over datasets that a test has made.

python -m tests.owt_pipeline.one_stage STAGE RUN FLAGS
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from owt_pipeline import config
from owt_pipeline.command_line import CommandParser, reporting_errors
from owt_pipeline.commands.run import check_flags, exit_code, runtime_of
from owt_pipeline.engine.runner import run_stages
from owt_pipeline.ledger.root import require_run
from owt_pipeline.pipeline import STAGES
from owt_pipeline.stages.import_text.stage import STAGE as IMPORT
from schemas.settings import add_flags, flags_given


def run_alone(name: str, workdir: str, argv: Sequence[str]) -> int:
    """Run a stage as `owt run` does, but none before it; return the exit code."""
    stage = {**STAGES, IMPORT.name: IMPORT}[name]
    parser = CommandParser(prog=name)
    add_flags(parser, stage.options)
    config.add_run_flags(parser)

    def run() -> int:
        arguments, files, run_flags = parser.parse_with_files(argv)
        assert not files
        check_flags(parser, run_flags)
        runtime = runtime_of(workdir, arguments, run_flags, {})
        require_run(runtime.workdir)
        options = config.stage_options(stage, None, {}, flags_given(stage.options, arguments))
        results = run_stages([(stage, options)], runtime)
        return exit_code(results, runtime.workdir, may_collect_nothing=True)

    return reporting_errors(run)


if __name__ == "__main__":
    sys.exit(run_alone(sys.argv[1], sys.argv[2], sys.argv[3:]))
