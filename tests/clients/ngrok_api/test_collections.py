"""Every collection that the server lists and the package has, through one life: create, get, list,
update, delete, gone."""

import inspect
import unittest

import ngrok
from harness import client, plain, properties, raw
from samples import ATTRIBUTES, NOT_IN_THE_PACKAGE, READ_ONLY, SAMPLES, name

NEVER_MADE = "0" * 27


def collections():
    status, root = raw("GET", "/")
    assert status == 200, root
    return sorted(root["subresource_uris"])


def make(api, attribute, arguments):
    """A new object; endpoints go to an upstream, which the package cannot say."""
    if attribute != "endpoints":
        return getattr(api, attribute).create(**arguments)
    host = name("made") + ".culvert.localhost"
    body = dict(url="http://" + host, upstream_url="http://127.0.0.1:9", description="made by a test")
    status, made = raw("POST", "/endpoints", body)
    assert status == 201, made
    return api.endpoints.get(made["id"])


class Collections(unittest.TestCase):
    def test_each_lives_its_life(self):
        lived = 0
        for collection in collections():
            with self.subTest(collection):
                if collection in NOT_IN_THE_PACKAGE:
                    continue
                attribute = ATTRIBUTES.get(collection, collection)
                if attribute in READ_ONLY:
                    self.only_read(attribute)
                else:
                    self.assertIn(attribute, SAMPLES, "a new collection needs a row of samples")
                    self.life(attribute)
                lived += 1
        print("collections driven: %d" % lived)

    def only_read(self, attribute):
        resource = getattr(client(), attribute)
        listed = resource.list()
        self.assertEqual([plain(one) for one in listed], [])
        self.gone(resource.get, "xx_" + NEVER_MADE)

    def gone(self, call, id):
        with self.assertRaises(ngrok.NotFoundError) as raised:
            call(id)
        error = raised.exception
        self.assertEqual(error.http_status_code, 404)
        self.assertIsNone(error.error_code)
        self.assertRegex(error.operation_id, "^op_[0-9A-Za-z]{27}$")

    def life(self, attribute):
        api = client()
        resource = getattr(api, attribute)
        of_create, of_update = SAMPLES[attribute]
        arguments = of_create(api) if of_create else {}

        older = make(api, attribute, of_create(api) if of_create else {})
        made = make(api, attribute, arguments)
        shown = properties(made)
        self.says(shown, arguments)
        self.assertTrue(made.uri.endswith("/" + made.id), made.uri)
        self.assertRegex(made.id, "^[a-z0-9]+_[0-9A-Za-z]{27}$")
        self.assertGreater(made.id, older.id, "ids go up")

        got = resource.get(made.id)
        self.same(plain(made), plain(got))
        self.assertIsNone(properties(got).get("token"))

        page = resource.list(limit="2")
        self.assertEqual([one.id for one in properties(page)[self.list_key(page)]], [made.id, older.id])
        self.assertTrue(page.uri.startswith("http"), page.uri)
        self.assertEqual(next(iter(resource.list(before_id=made.id, limit="1"))).id, older.id)
        if "filter" in inspect.signature(resource.list).parameters:
            # A filter that finds one object leaves no further page.
            found = resource.list(filter='obj.id == "%s"' % made.id)
            self.assertEqual([one.id for one in found], [made.id])
            with self.assertRaises(ngrok.Error) as raised:
                resource.list(filter="obj.nothing_of_this_name == 1")
            self.assertEqual(raised.exception.error_code, "ERR_NGROK_250")

        changes = of_update(api)
        changed = resource.update(made.id, **changes)
        self.says(properties(changed), changes)
        self.same(plain(resource.get(made.id)), plain(changed))
        untouched = {k: v for k, v in plain(got).items() if k not in changes and k not in VOLATILE}
        self.assertEqual(untouched, {k: plain(changed)[k] for k in untouched})

        # An object of the package can mostly change and delete itself.
        if hasattr(changed, "update"):
            changed.update(**of_update(api))
        self.assertIsNone(resource.delete(made.id))
        for call in (resource.get, resource.delete):
            self.gone(call, made.id)
        self.gone(lambda id: resource.update(id, **of_update(api)), made.id)
        self.gone(resource.get, made.id[:-27] + NEVER_MADE)
        self.gone(resource.get, "junk")
        older.delete()
        self.gone(resource.get, older.id)

    def says(self, shown, arguments):
        for key, value in arguments.items():
            if key not in WRITE_ONLY and key in shown:
                self.has(plain(shown[key]), plain(value), key)

    def has(self, shown, sent, key):
        """What was sent comes back; objects may come back with more members."""
        if isinstance(sent, dict):
            for name, value in sent.items():
                self.has(shown[name], value, key + "." + name)
        elif isinstance(sent, list):
            self.assertEqual(len(shown), len(sent), key)
            for back, one in zip(shown, sent):
                self.has(back, one, key)
        else:
            self.assertEqual(shown, sent, key)

    def same(self, left, right):
        self.assertEqual(
            {k: v for k, v in left.items() if k != "token"},
            {k: v for k, v in right.items() if k != "token"},
        )

    def list_key(self, page):
        keys = [k for k, v in properties(page).items() if isinstance(v, list)]
        self.assertEqual(len(keys), 1, keys)
        return keys[0]


# Never shown again, or shown in another form.
WRITE_ONLY = {"value", "private_key_pem", "valid_after", "valid_until"}
# What an update moves without being asked, or shows in another form.
VOLATILE = {"updated_at", "last_updated_by", "destinations", "target", "sources", "token"}


if __name__ == "__main__":
    unittest.main()
