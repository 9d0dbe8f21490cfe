"""Sessions that yield and last: F3 (their connections break), F4 (their broker is replaced), F5 (what it costs that
they can be resumed), M4 to M7 (their memory goes to the host's, and comes back)."""

import sessions_breaking
import sessions_evicting
import sessions_models
import sessions_replacing
import sessions_resuming
from tenants import Tenants


def run(bench):
    if "tcp" not in bench.machine.kinds:
        return
    if bench.wants("F3"):
        sessions_breaking.run(bench)
    if bench.wants("F4"):
        sessions_replacing.run(bench)
    if bench.wants("F5"):
        sessions_resuming.run(bench)
    tenants = Tenants(bench)
    if bench.wants("M4", "M6"):
        sessions_evicting.there_and_back(bench, tenants)
    if bench.wants("M5"):
        sessions_evicting.turns(bench, tenants)
    if bench.wants("M7"):
        sessions_models.run(bench, tenants)
