"""The dashboard and the alert rules name series and labels that fargpud exports."""

import json
import re
import unittest

from pages import SOURCE
from reference import metrics

FOLDER = SOURCE / "examples" / "monitoring"
OF_PROMETHEUS = {"le", "instance", "job"}


def series(text):
    """Pairs of a series' name, without the ending of a histogram's, and the labels in its braces."""
    for name, braces in re.findall(r"\b(fargpu_\w+)(?:\{([^}]*)\})?", text):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", braces))


class Monitoring(unittest.TestCase):
    def check(self, expression, place):
        known, found, labels = metrics(), list(series(expression)), set()
        for name, named in found:
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            if base not in known or known[base][0] != "histogram":
                base = name
            self.assertIn(base, known, place)
            self.assertLessEqual(named, set(known[base][2]), f"{place}: {name}")
            labels |= set(known[base][2])
        for names in re.findall(r"\bby \(([^)]*)\)", expression):
            self.assertLessEqual(set(names.split(", ")), labels | OF_PROMETHEUS, place)
        return len(found), labels

    def test_dashboard(self):
        board = json.loads((FOLDER / "fargpu-dashboard.json").read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                found, labels = self.check(target["expr"], panel["title"])
                self.assertGreater(found, 0, panel["title"])
                self.assertLessEqual(set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])), labels, panel["title"])
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()
                self.assertIn(label, metrics()[name][2])
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
        self.assertEqual(len(places), len(set(places)), "panels lie on each other")

    def test_alert_rules(self):
        rules = re.split(r"(?m)^ +- alert: ", (FOLDER / "fargpu-alerts.yaml").read_text())[1:]
        self.assertGreater(len(rules), 5)
        for rule in rules:
            expression = re.search(r"(?m)^ +expr: (.+)$", rule)[1]
            _, labels = self.check(expression, rule)
            self.assertLessEqual(set(re.findall(r"\$labels\.(\w+)", rule)), labels | OF_PROMETHEUS, rule)
        ends = {name for rule in rules if "30 * 86400" in rule for name, _ in series(rule)}
        self.assertEqual(ends, {"fargpu_certificate_expiry_timestamp_seconds", "fargpu_token_expiry_timestamp_seconds"})


if __name__ == "__main__":
    unittest.main()
