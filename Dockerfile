# The image of Dataflow's workers and of the Flex Template's launcher; also a worker pool's for Flink and Spark.
#
#   python -m pip wheel --no-deps --wheel-dir dist . && docker build --tag REGISTRY/owt:TAG .
#
# Beam's image brings Python, Beam with Google's clients, and the program that starts a worker (/opt/apache/beam/boot).
FROM gcr.io/dataflow-templates-base/python311-template-launcher-base:20230622_RC00 AS launcher

FROM apache/beam_python3.11_sdk:2.77.0

COPY --from=launcher /opt/google/dataflow/python_template_launcher /opt/google/dataflow/python_template_launcher

WORKDIR /opt/owt
COPY constraints.txt flex/launch.py dist/owt_pipeline-*.whl ./

# Not the extra `gcp`: its packages are in Beam's image, but for the version of google-cloud-storage.
RUN python -m pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt \
        "$(echo ./owt_pipeline-*.whl)[pipeline,aws,azure]" google-cloud-storage \
    && owt --version

RUN useradd --create-home --uid 1000 owt
USER owt

# The second: workers start in the environment as it is, not in a copy of it that they make each time.
ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/opt/owt/launch.py \
    RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1

ENTRYPOINT ["/opt/apache/beam/boot"]
