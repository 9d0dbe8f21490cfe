"""`fargpu ls`: hosts, devices and sessions, for people and for programs."""

import json
import os
import shutil
import tempfile
import unittest

from rig import SystemTest, fargpu, paths, wait_until


class Listing(SystemTest):
    def json(self, pool, code=0):
        done = fargpu("ls", "-o", "json", pool=pool)
        self.assertEqual((done.code, done.err), (code, ""), done.out)
        return json.loads(done.out)

    def test_asked_again_and_again(self):
        """Nothing of the host's facts is used up by telling them."""
        host = self.broker("--warm-workers", "0")
        connection = self.connection(host)
        connection.say("(hello = (protocolVersion = 1))")
        self.assertIn("helloAnswer", connection.hear())
        for _ in range(100):
            connection.say("(statusRequest = void)")
            self.assertIn(b"Fake GPU 1", connection.frame()[3])

    def test_one_host_of_two_is_away(self):
        host = self.broker()
        pool = f"127.0.0.1:1,{host.pool}"
        away, here = self.json(pool, code=125)
        self.assertIn("cannot connect to 127.0.0.1:1", away["error"])
        self.assertEqual(len(here["devices"]), 2)
        text = fargpu("ls", pool=pool)
        self.assertEqual(text.code, 125)
        self.assertIn("127.0.0.1:1  ! cannot connect", text.out)
        self.assertIn("Fake GPU 1", text.out)

    def test_no_pool(self):
        done = fargpu("ls")
        self.assertEqual(done.code, 125)
        self.assertIn("set FARGPU_POOL=", done.err)


if __name__ == "__main__":
    unittest.main()
