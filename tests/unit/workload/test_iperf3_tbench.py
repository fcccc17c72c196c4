"""iperf3's JSON and text, tbench's text, pktgen's results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsprof import workload
from tests.support import CASES, need

DATA = Path(__file__).parents[2] / "data" / "workload"


def parsed(tool: str, text: bytes) -> tuple[dict[str, float], tuple[str, ...], tuple[str, ...]]:
    values, warnings, errors = workload.parse(tool, (tool,), text, b"")
    return {v.name: v.value for v in values}, warnings, errors


def iperf3(name: str) -> tuple[dict[str, float], tuple[str, ...], tuple[str, ...]]:
    return parsed("iperf3", (DATA / name).read_bytes())


def test_tcp_json() -> None:
    end = json.loads((DATA / "iperf3-tcp.json").read_text())["end"]
    values, warnings, errors = iperf3("iperf3-tcp.json")
    assert not warnings
    assert not errors
    assert values["throughput"] == pytest.approx(end["sum_received"]["bits_per_second"] / 1e6)
    assert values["bytes_received"] == end["sum_received"]["bytes"]
    assert values["cpu_local"] == end["cpu_utilization_percent"]["host_total"]


@pytest.mark.parametrize("name", ["iperf3-tcp-reverse-2.json", "iperf3-tcp-bidir.json"])
def test_payload_received_is_the_denominator_in_every_direction(name: str) -> None:
    end = json.loads((DATA / name).read_text())["end"]
    received = sum(end[key]["bytes"] for key in ("sum_received", "sum_received_bidir_reverse") if key in end)
    values, _, _ = workload.parse("iperf3", ("iperf3",), (DATA / name).read_bytes(), b"")
    assert workload.denominators("iperf3", ("iperf3",), values) == {"kb": received / 1024}


def test_udp_json_tells_delivered_from_lost() -> None:
    document = json.loads((DATA / "iperf3-udp.json").read_text())
    for key in ("sum", "sum_received"):
        document["end"][key] |= {"packets": 77, "lost_packets": 7}
    values, _, _ = parsed("iperf3", json.dumps(document).encode())
    assert (values["datagrams_sent"], values["datagrams_received"], values["datagrams_lost"]) == (77, 70, 7)
    assert values["bytes_received"] == 70 * 32768


def test_old_udp_json_with_one_sum_only() -> None:
    document = json.loads((DATA / "iperf3-udp.json").read_text())
    del document["end"]["sum_sent"], document["end"]["sum_received"]
    values, _, _ = parsed("iperf3", json.dumps(document).encode())
    assert values["datagrams_received"] == 77
    assert values["throughput"] == pytest.approx(document["end"]["sum"]["bits_per_second"] / 1e6)


def test_text_summaries() -> None:
    values, _, _ = iperf3("iperf3-tcp-2.txt")
    assert (values["throughput"], values["retransmits_local"]) == (36600, 0)
    values, _, _ = iperf3("iperf3-udp.txt")
    assert (values["throughput"], values["datagrams_received"], values["jitter"]) == (20.2, 77, 0.026)


@pytest.mark.parametrize("name", ["iperf3-refused.json", "iperf3-refused.txt"])
def test_refused_connection_in_iperf3s_words(name: str) -> None:
    values, _, errors = iperf3(name)
    assert not values
    assert "unable to connect to server: Connection refused" in errors[0]


def test_omitted_beginning_gives_no_denominators() -> None:
    values, _, _ = workload.parse("iperf3", ("iperf3",), (DATA / "iperf3-tcp.json").read_bytes(), b"")
    for argv in (("iperf3", "-O", "2"), ("iperf3", "--omit=2"), ("iperf3", "-O2")):
        assert workload.denominators("iperf3", argv, values) == {}


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"{",
        b"[]",
        b'{"end": null}',
        b'{"end": {"sum_sent": [1]}}',
        b"\xff{\xfe",
        b'{"end":{"streams":[null,3]}}',
    ],
)
def test_junk_never_raises(junk: bytes) -> None:
    values, _, _ = parsed("iperf3", junk)
    assert not values


def test_client_line() -> None:
    driver = workload.driver(("iperf3", "-t", "1", "-p", "5300"))
    assert driver.asked_port() == 5300
    assert driver.client_argv("198.18.0.2", 5300) == ("iperf3", "-t", "1", "-p", "5300", "-c", "198.18.0.2", "-J")
    second = driver.client_argv("198.18.0.2", 5301)
    assert second.count("-p") == 1
    assert second[second.index("-p") + 1] == "5301"


def test_tbench() -> None:
    complaint = b"failed to create barrier semaphore \n"  # it goes on without one
    values, warnings, errors = parsed("tbench", complaint + (DATA / "tbench.txt").read_bytes())
    assert not errors
    assert (values["throughput"], values["clients"], values["latency_max"]) == (350.169, 2, 26.904)
    assert values["operations"] > 10_000
    assert any("barrier semaphore" in w for w in warnings)


def test_tbench_that_measured_nothing_says_so() -> None:
    values, _, errors = parsed("tbench", (DATA / "tbench-too-short.txt").read_bytes())
    assert not values
    assert "measured nothing" in errors[0]


def test_tbench_line_gets_processes_and_server() -> None:
    argv = ("tbench", "-t", "3")
    assert workload.driver(argv).client_argv("198.18.0.2", 7003) == (*argv, "1", "198.18.0.2")
    assert workload.driver((*argv, "4")).client_argv("h", 7003) == (*argv, "4", "h")
    assert workload.driver((*argv, "4", "other")).client_argv("h", 7003) == (*argv, "4", "other")


def test_pktgen_adds_up_its_queues() -> None:
    text = b"""Result device: eth0@0
Result: OK: 83003(c82999+d3) usec, 10000 (60byte,0frags)
  120477pps 57Mb/sec (57828960bps) errors: 0
Result: OK: 90000(c82999+d3) usec, 23 (60byte,0frags)
  255pps 0Mb/sec (122400bps) errors: 2
"""
    values, warnings, _ = workload.parse("pktgen", ("pktgen_sample01.sh",), text, b"")
    assert workload.denominators("pktgen", ("p",), values) == {"skb": 10023}
    assert {v.name: v.value for v in values}["throughput"] == 120732
    assert "2 packets could not be sent" in warnings[0]


class TestRealOutputs:
    """Outputs from elsewhere, read where they are."""

    @pytest.fixture(autouse=True)
    def _cases(self) -> None:
        need("cases")

    def read(self, name: str) -> tuple[dict[str, float], tuple[str, ...], tuple[str, ...]]:
        return parsed(name.split("/", maxsplit=1)[0], (CASES / name).read_bytes())

    def expected(self, name: str) -> dict[str, float]:
        lines = (CASES / name).read_text().splitlines()
        return {line.split(":")[0]: float(line.split(":")[1]) for line in lines if ":" in line}

    def test_iperf3_tcp(self) -> None:
        expected = self.expected("iperf3/lkp-1.expected.yaml")
        values, _, errors = self.read("iperf3/lkp-1.txt")
        assert not errors
        assert values["throughput"] * 1e6 == pytest.approx(expected["tcp.receiver.bps"], rel=1e-14)
        assert values["throughput_sent"] * 1e6 == pytest.approx(expected["tcp.sender.bps"], rel=1e-14)

    def test_iperf3_not_a_number(self) -> None:
        values, warnings, errors = self.read("iperf3/iperf3-json-nan-fragment.txt")
        assert not values
        assert not errors
        assert "no summary" in warnings[0]

    def test_iperf3_error_in_json(self) -> None:
        _, _, errors = self.read("iperf3/iperf3-json-no-route.json")
        assert "No route to host" in errors[0]

    def test_iperf3_error_after_json(self) -> None:
        _, _, errors = self.read("iperf3/iperf3-json-trailing-nonjson.txt")
        assert errors == ("iperf3: error - unable to send control message: Broken pipe",)

    def test_iperf3_text_sums(self) -> None:
        values, _, _ = self.read("iperf3/iperf3-text-SUM.txt")
        assert (values["throughput"], values["throughput_sent"], values["retransmits_local"]) == (48.8, 50.7, 4)

    def test_tbench_twice(self) -> None:
        expected = self.expected("tbench/lkp-01.expected.yaml")
        values, _, errors = self.read("tbench/lkp-01.txt")
        assert not errors
        assert values["throughput"] == pytest.approx(expected["throughput_MB/s"])
        assert values["throughput_harmonic_mean"] == pytest.approx(
            expected["throughput_MB/s_harmonic_mean"], abs=0.005
        )
        assert values["clients"] == expected["clients"]
        assert values["processes"] == expected["procs"]
        assert values["latency_max"] == pytest.approx(expected["max_latency"], abs=0.006)
        assert values["latency_max_harmonic_mean"] == pytest.approx(expected["max_latency_harmonic_mean"], abs=0.006)
