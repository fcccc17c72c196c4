"""netperf's outputs: omni keys, tables for people, errors, warnings; and the command lines nsprof makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsprof import workload
from nsprof.workload import netperf
from tests.support import CASES, need

DATA = Path(__file__).parents[2] / "data" / "workload"


def outcome(
    name: str, argv: tuple[str, ...] = ("netperf",)
) -> tuple[dict[str, float], tuple[str, ...], tuple[str, ...]]:
    values, warnings, errors = workload.parse("netperf", argv, (DATA / name).read_bytes(), b"")
    return {v.name: v.value for v in values}, warnings, errors


def divided(name: str, argv: tuple[str, ...] = ("netperf",)) -> dict[str, float]:
    values, _, _ = workload.parse("netperf", argv, (DATA / name).read_bytes(), b"")
    return workload.denominators("netperf", argv, values)


def key(name: str, word: str) -> float:
    """The number after KEY= in a stored output, read independently of the parser."""
    lines = (DATA / name).read_text().splitlines()
    return float(next(line.split("=")[1] for line in lines if line.startswith(word + "=")))


@pytest.mark.parametrize("test", ["tcp_rr", "tcp_crr", "udp_rr"])
def test_omni_request_response_counts_whole_transactions(test: str) -> None:
    name = f"netperf-omni-{test}.txt"
    values, warnings, errors = outcome(name)
    assert not warnings
    assert not errors
    assert values["throughput"] == key(name, "THROUGHPUT")
    assert values["transactions"] == key(name, "LOCAL_SEND_CALLS")  # one byte each way, so one call each
    assert divided(name) == {"transaction": values["transactions"]}
    order = [values[f"latency_{p}"] for p in ("min", "p50", "p90", "p99", "max")]
    assert order == sorted(order)
    assert values["service_demand_local"] == key(name, "LOCAL_SD")


@pytest.mark.parametrize(("test", "receiver"), [("tcp_stream", "REMOTE"), ("tcp_maerts", "LOCAL")])
def test_omni_stream_divides_by_payload_received_wherever_the_receiver_is(test: str, receiver: str) -> None:
    name = f"netperf-omni-{test}.txt"
    values, _, _ = outcome(name)
    assert divided(name) == {"kb": key(name, f"{receiver}_BYTES_RECVD") / 1024}
    assert values["throughput"] == key(name, "THROUGHPUT")
    assert not [n for n in values if n.startswith("latency")]  # a stream's are the times of its send calls


def test_omni_udp_stream_tells_delivered_from_sent() -> None:
    name = "netperf-omni-udp_stream.txt"
    values, _, _ = outcome(name)
    assert values["datagrams_sent"] == key(name, "LOCAL_SEND_CALLS")
    assert values["datagrams_received"] == key(name, "REMOTE_RECV_CALLS")
    assert values["datagrams_received"] < values["datagrams_sent"]
    assert values["throughput_sent"] > values["throughput"] == key(name, "REMOTE_RECV_THROUGHPUT")
    assert divided(name)["datagram"] == values["datagrams_received"]


@pytest.mark.parametrize(
    ("name", "argv", "expected"),
    [
        (
            "netperf-tcp_stream-cpu.txt",
            "netperf",
            {"throughput": 30106.37, "cpu_local": 87.01, "service_demand_remote": 0.474},
        ),
        ("netperf-tcp_maerts.txt", "netperf", {"throughput": 31510.30, "elapsed": 1.0}),
        ("netperf-tcp_rr-cpu.txt", "netperf", {"throughput": 45504.62, "service_demand_local": 19.531}),
        ("netperf-tcp_crr.txt", "netperf", {"transaction_rate": 20934.83}),
        (
            "netperf-udp_stream-cpu.txt",
            "netperf",
            {"throughput": 50711.4, "throughput_sent": 51110.2, "datagrams_received": 96779, "cpu_remote": 88.89},
        ),
        ("netperf-udp_rr-noheader.txt", "netperf -P 0", {"throughput": 57836.84}),
        ("netperf-tcp_stream-kbytes.txt", "netperf -f K", {"throughput": 3757021.71 * 1024 * 8 / 1e6}),
        ("netperf-tcp_stream-verbose.txt", "netperf -v 2", {"throughput": 28379.82}),
        ("netperf-interim.txt", "netperf -D 0.5", {"throughput": 30609.00, "elapsed": 2.0}),
        (
            "netperf-tcp_rr-columns.txt",
            "netperf",
            {"throughput": 44440.69, "latency_min": 10, "latency_p90": 23, "latency_p99": 35, "latency_mean": 22.42},
        ),
        ("netperf-tcp_rr-csv.txt", "netperf", {"throughput": 46298.02, "latency_min": 9, "latency_p99": 35}),
    ],
)
def test_output_for_people_gives_its_figures(name: str, argv: str, expected: dict[str, float]) -> None:
    values, warnings, errors = outcome(name, tuple(argv.split()))
    assert not errors
    assert all("prints its time to 10 ms" in w for w in warnings)
    assert {n: values[n] for n in expected} == pytest.approx(expected)


def test_confidence_warning_is_one_warning_in_netperfs_words() -> None:
    values, warnings, errors = outcome("netperf-udp_rr-confidence.txt", ("netperf", "-i", "3,3", "-I", "99,0.1"))
    assert values["throughput"] == 70425.66
    assert not errors
    assert "Desired confidence was not achieved" in warnings[0]
    assert "305.815%" in warnings[0]
    assert any("repeated its measurement" in w for w in warnings)


@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("netperf-tcp_rr-cpu.txt", True),  # 1.00 s: 0.5 %
        ("netperf-udp_stream-cpu.txt", False),  # datagrams are counted, not reckoned
        ("netperf-omni-tcp_rr.txt", False),
    ],
)
def test_amounts_reckoned_from_a_rounded_time_say_so(name: str, warned: bool) -> None:
    _, warnings, _ = outcome(name)
    assert any("may be off by 0.5 %" in w for w in warnings) is warned


def test_repeated_measurement_gives_no_denominators() -> None:
    assert divided("netperf-udp_rr-confidence.txt", ("netperf", "-i", "3,3")) == {}
    assert divided("netperf-udp_rr-confidence.txt", ("netperf", "-I99,0.1")) == {}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("netperf-noserver.txt", "are you sure there is a netserver listening"),
        ("netperf-unknown-test.txt", "NONSENSE"),
    ],
)
def test_failures_are_told_in_netperfs_own_words(name: str, words: str) -> None:
    values, _, errors = outcome(name)
    assert not values
    assert words in errors[0]


@pytest.mark.parametrize(
    "junk", [b"", b"\xff\xfe\0", b"Throughput,\n", b"1 2 3\n" * 3, b"Recv   Send    Send\n", b"=\nA=\n"]
)
def test_junk_never_raises(junk: bytes) -> None:
    values, _, _ = workload.parse("netperf", ("netperf",), junk, junk)
    assert not [v for v in values if v.name == "throughput"]


def test_client_line_keeps_the_users_words_and_adds_what_they_lack() -> None:
    driver = workload.driver(("netperf", "-t", "UDP_RR", "-l", "2", "--", "-r", "64,128"))
    argv = driver.client_argv("198.18.0.2", 7777)
    assert argv[:5] == ("netperf", "-t", "UDP_RR", "-l", "2")
    separator = argv.index("--")
    added = argv[5:separator]
    assert added[:4] == ("-H", "198.18.0.2", "-p", "7777")
    assert "-j" in added
    assert argv[separator + 1 : separator + 3] == ("-r", "64,128")
    assert argv[-2] == "-k"
    assert {"THROUGHPUT", "P99_LATENCY"} <= set(argv[-1].split(","))


def test_client_line_leaves_the_users_own_server_and_port() -> None:
    argv = workload.driver(("netperf", "-H10.0.0.7", "-p", "99", "-tTCP_STREAM")).client_argv("198.18.0.2", 7777)
    assert "198.18.0.2" not in argv
    assert "7777" not in argv
    assert "-j" not in argv


def test_client_line_replaces_output_formats_but_keeps_their_keys() -> None:
    argv = workload.driver(("netperf", "--", "-o", "local_cong_control,throughput", "-m", "1K")).client_argv("::1", 1)
    words = argv[argv.index("--") :]
    assert "-o" not in words
    assert words[1:3] == ("-m", "1K")
    assert argv[-1].split(",").count("THROUGHPUT") == 1
    assert argv[-1].endswith("LOCAL_CONG_CONTROL")
    assert "-6" in argv


def test_cpu_measurement_is_not_added_to_confidence_runs() -> None:
    argv = workload.driver(("netperf", "-i", "10,3", "-I", "95,5")).client_argv("198.18.0.2", 1)
    assert "-c" not in argv
    assert "-C" not in argv


def test_tests_that_are_not_omni_are_left_alone() -> None:
    argv = workload.driver(("netperf", "-t", "SCTP_STREAM_MANY", "--", "-m", "10K")).client_argv("198.18.0.2", 1)
    assert argv[-3:] == ("--", "-m", "10K")
    assert "-k" not in argv


def test_getopt_reads_clustered_and_attached_words() -> None:
    words = netperf.split_words(("netperf", "-cCt", "TCP_RR", "-l5", "-H", "-p", "--", "-p", "3"))
    assert words.test_name == "TCP_RR"
    assert words.option("l") == "5"
    assert words.option("H") == "-p"
    assert words.has("C")
    assert not words.has("p")
    assert words.test == ("-p", "3")


class TestRealOutputs:
    """Outputs from elsewhere, read where they are."""

    @pytest.fixture(autouse=True)
    def _cases(self) -> None:
        need("cases")

    def read(self, name: str) -> tuple[dict[str, float], tuple[str, ...], tuple[str, ...]]:
        values, warnings, errors = workload.parse(
            "netperf", ("netperf",), (CASES / "netperf" / name).read_bytes(), b""
        )
        return {v.name: v.value for v in values}, warnings, errors

    def test_sixty_four_interleaved_results(self) -> None:
        expected = {}
        for line in (CASES / "netperf/sctp-64-interleaved.expected.yaml").read_text().splitlines():
            name, _, number = line.partition(":")
            expected[name] = float(number)
        values, _, errors = self.read("sctp-64-interleaved.txt")
        assert not errors
        assert values["results"] == 64
        assert values["throughput"] == pytest.approx(expected["Throughput_Mbps"], rel=1e-12)
        assert values["throughput_total"] == pytest.approx(expected["Throughput_total_Mbps"], rel=1e-12)
        # The expectation takes 300 s as asked for, netperf measured 300.00 to 300.01.
        assert values["messages"] == pytest.approx(expected["workload"], rel=2e-6)

    def test_confidence_warning_reaches_the_warnings(self) -> None:
        values, warnings, _ = self.read("netperf-tcp_stream-cC-I-warning.txt")
        assert values["throughput"] == 9591.78
        assert values["service_demand_local"] == 0.483
        assert "Throughput: 6.663%" in warnings[0]

    def test_interrupted_run_gives_its_final_line(self) -> None:
        values, _, errors = self.read("netperf-interim-ctrlC-wrapped.txt")
        assert values["throughput"] == 37758.53
        assert values["elapsed"] == 6.41
        assert not errors

    def test_latency_columns(self) -> None:
        values, _, _ = self.read("netperf-tcp_rr-O-latency.txt")
        assert values == {"throughput": 4863.66, "latency_min": 100, "latency_p90": 235, "latency_p99": 385}

    def test_almost_no_datagrams(self) -> None:
        values, _, _ = self.read("netperf-udp_stream-near-zero.txt")
        assert (values["throughput"], values["datagrams_received"]) == (0.04, 7)

    def test_refused_control_connection(self) -> None:
        values, _, errors = self.read("netperf-error-establish-control.txt")
        assert not values
        assert "are you sure there is a netserver listening on xx.xx.xx.xx" in errors[0]
