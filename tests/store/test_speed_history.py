"""Test the robust speed figures against a slow reference."""

from math import sqrt

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event

from fedgc.store.records import Appended, Begun
from fedgc.store.speed_history import Sample, speed_of

TIMES = st.floats(1e-3, 1e3)
SAMPLES = st.lists(
    st.builds(
        Sample,
        round_id=st.integers(1, 100),
        step_s=st.none() | TIMES,
        spread_s=st.none() | st.floats(0, 10),
        upload_s=st.floats(0, 10),
        download_s=st.floats(0, 10),
        up_bytes=st.integers(0, 10**6),
        down_bytes=st.integers(0, 10**6),
        failed=st.booleans(),
        struck=st.booleans(),
    ),
    min_size=1,
    max_size=40,
)


def middle(values):
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@given(SAMPLES)
def test_speed_equals_slow_reference(samples):
    speed = speed_of(samples)
    steps = [sample.step_s for sample in samples if sample.step_s is not None]
    if not steps:
        assert speed is None
        return
    between = 1.4826 * middle([abs(step - middle(steps)) for step in steps])
    spreads = [sample.spread_s for sample in samples if sample.spread_s is not None]
    within = middle(spreads) if spreads else 0.0
    assert speed.step_s == middle(steps)
    assert abs(speed.spread_s - sqrt(between**2 + within**2)) <= 1e-9 * (1 + speed.spread_s)
    assert speed.failures == len([1 for sample in samples if sample.failed]) / len(samples)
    assert speed.rounds == len(steps)


@given(SAMPLES, st.floats(1e-6, 1e6))
def test_minority_of_rounds_cannot_move_speed_out_of_range(samples, outlier):
    honest = [sample._replace(step_s=sample.step_s or 1.0) for sample in samples]
    liars = [honest[0]._replace(step_s=outlier)] * ((len(honest) - 1) // 2)
    times = [sample.step_s for sample in honest]
    assert min(times) <= speed_of([*honest, *liars]).step_s <= max(times)


def test_link_speed_is_median_of_transfers():
    quick = Sample(1, 0.1, None, 1.0, 0.0, 1000, 0, False, False)
    stalled, absurd = quick._replace(upload_s=100.0), quick._replace(upload_s=1e-12)
    speed = speed_of([quick, stalled, quick, absurd, quick])
    assert speed.up_bytes_s == 1000.0
    assert speed.down_bytes_s is None


def test_query_reads_only_rows_of_ring(file_store, a_row, a_client):
    file_store.write(Begun(1.0, "r1", {"task": "digits"}))
    file_store.write(Appended(2.0, "r1", a_row(0, a_client("a"))))
    asked = []
    event.listen(
        file_store._database.engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, parameters, *_: asked.append((statement, parameters)),
    )
    file_store.speeds()
    big = [question for question in asked if "client_rounds" in question[0]]
    with file_store._database.reading() as connection:
        plans = [
            line[3]
            for ask in big
            for line in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {ask[0]}", ask[1])
        ]
    assert any(plan.startswith("SEARCH recents USING") for plan in plans)
    assert any(
        "SEARCH client_rounds USING PRIMARY KEY (round_id=? AND client_id=?)" in plan for plan in plans
    )
    assert not any("SCAN" in plan for plan in plans)
