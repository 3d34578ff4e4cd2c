"""What the package shows of single collections: paging, secrets, sources, errors."""

import unittest

import ngrok
from harness import TOKEN, URL, client, plain, properties, raw
from samples import Dict, name


class Paging(unittest.TestCase):
    def test_an_iterator_follows_the_links_through_more_than_a_page(self):
        api = client()
        before = {key.id for key in api.api_keys.list()}
        made = [api.api_keys.create(description="many").id for _ in range(105)]
        every = [key.id for key in api.api_keys.list()]
        self.assertEqual(every, sorted(every, reverse=True), "newest first")
        self.assertEqual(set(every), before | set(made))
        self.assertEqual(len(every), len(set(every)))

        first = api.api_keys.list()
        self.assertEqual(len(first.keys), 100)
        self.assertTrue(first.next_page_uri.startswith(URL + "/api_keys?"), first.next_page_uri)

        # A filter and a limit go along from page to page.
        many = api.api_keys.list(limit="50", filter='obj.description == "many"')
        self.assertIn("limit=50", many.next_page_uri)
        self.assertIn("filter=", many.next_page_uri)
        self.assertEqual([key.id for key in many], made[::-1])
        exact = api.api_keys.list(limit="35", filter='obj.description == "many"')
        pages = 0
        while exact.next_page_uri is not None:
            self.assertEqual(len(exact.keys), 35)
            answer = api.http_client.request("get", exact.next_page_uri)
            exact = type(exact)(api, answer)
            pages += 1
        self.assertEqual((pages, len(exact.keys)), (2, 35), "no empty page after a full last one")
        for id in made:
            api.api_keys.delete(id)

    def test_a_base_url_may_end_in_a_slash(self):
        self.assertTrue(list(client(url=URL + "/").api_keys.list(limit="1")))


class Keys(unittest.TestCase):
    def test_a_key_is_shown_once_works_and_dies(self):
        made = client().api_keys.create()
        self.assertTrue(made.token.startswith("culvert_key_" + made.id[len("ak_"):] + "_"))
        with_it = client(made.token)
        self.assertIsNone(with_it.api_keys.get(made.id).token)
        self.assertIsNone(with_it.api_keys.update(made.id, description="x").token)
        with_it.api_keys.delete(made.id)
        for token, code in [
            (made.token, "ERR_NGROK_203"),
            ("junk", "ERR_NGROK_202"),
            (made.id, "ERR_NGROK_208"),
        ]:
            with self.assertRaises(ngrok.Error) as raised:
                client(token).api_keys.list()
            self.assertEqual((raised.exception.http_status_code, raised.exception.error_code), (401, code))
            self.assertNotIn(token, str(raised.exception))

    def test_a_bots_key_acts_for_the_bot_until_the_bot_is_inactive(self):
        api = client()
        bot = api.bot_users.create(name=name("owner"))
        self.assertTrue(bot.active)
        key = api.api_keys.create(owner_id=bot.id)
        self.assertEqual(key.owner_id, bot.id)
        with_it = client(key.token)
        self.assertEqual(with_it.api_keys.create().owner_id, bot.id)
        with self.assertRaises(ngrok.Error) as raised:
            with_it.bot_users.create(name=name("refused"))
        self.assertEqual(raised.exception.error_code, "ERR_NGROK_4111")
        admin = api.api_keys.create().owner_id
        self.assertTrue(admin.startswith("usr_"), admin)
        with self.assertRaises(ngrok.Error) as raised:
            with_it.api_keys.create(owner_id=admin)
        self.assertEqual(raised.exception.error_code, "ERR_NGROK_630")

        api.bot_users.update(bot.id, active=False)
        with self.assertRaises(ngrok.Error) as raised:
            with_it.api_keys.list()
        self.assertEqual((raised.exception.http_status_code, raised.exception.error_code), (403, "ERR_NGROK_636"))
        api.bot_users.delete(bot.id)
        with self.assertRaises(ngrok.NotFoundError):
            api.api_keys.get(key.id)

    def test_bots_and_service_users_are_the_same_objects(self):
        api = client()
        bot = api.bot_users.create(name=name("both"))
        body = bot.id.split("_")[1]
        service = api.service_users.get("service_" + body)
        self.assertEqual((service.id, service.name), ("service_" + body, bot.name))
        self.assertEqual(api.service_users.get(bot.id).id, "service_" + body)
        self.assertEqual(api.bot_users.get(service.id).id, bot.id)
        self.assertEqual(api.api_keys.create(owner_id=service.id).owner_id, bot.id)
        api.service_users.delete(service.id)
        with self.assertRaises(ngrok.NotFoundError):
            api.bot_users.get(bot.id)


class Destinations(unittest.TestCase):
    def test_every_public_target_is_taken_and_its_secrets_are_not_shown(self):
        api = client()
        role = {"role": {"role_arn": "arn:aws:iam::123456789012:role/events"}}
        creds = {"creds": {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "hidden-aws"}}
        arn = "arn:aws:%s:us-east-1:123456789012:%s"
        azure = {
            "tenant_id": "t",
            "client_id": "c",
            "client_secret": "hidden-azure",
            "logs_ingestion_uri": "https://sample.eastus-1.ingest.monitor.azure.com",
            "data_collection_rule_id": "dcr-00000000000000000000000000000000",
            "data_collection_stream_name": "Custom-Sample_CL",
        }
        targets = {
            "firehose": {"auth": creds, "delivery_stream_arn": arn % ("firehose", "deliverystream/s")},
            "kinesis": {"auth": role, "stream_arn": arn % ("kinesis", "stream/s")},
            "cloudwatch_logs": {"auth": role, "log_group_arn": arn % ("logs", "log-group:g")},
            "datadog": {"api_key": "hidden-datadog", "ddtags": "a:b", "service": "s", "ddsite": "datadoghq.eu"},
            "azure_logs_ingestion": azure,
        }
        taken = 0
        for kind, target in targets.items():
            with self.subTest(kind):
                try:
                    made = api.event_destinations.create(format="json", target=Dict(**{kind: target}))
                except ngrok.Error as error:
                    # A version without this kind of target refuses it, and says so by the contract's code.
                    self.assertEqual(error.error_code, "ERR_NGROK_236")
                    continue
                taken += 1
                for shown in (made, api.event_destinations.get(made.id)):
                    self.assertNotIn("hidden", str(plain(shown)))
                    properties(getattr(shown.target, kind))
                    others = [k for k in targets if k != kind]
                    self.assertEqual([plain(shown.target)[k] for k in others], [None] * 4)
                api.event_destinations.delete(made.id)
        print("public targets taken: %d of %d" % (taken, len(targets)))

    def test_one_in_use_stays(self):
        api = client()
        destination = api.event_destinations.create(format="json", target=Dict(debug={"log": True}))
        subscription = api.event_subscriptions.create(destination_ids=[destination.id])
        self.assertEqual([plain(one) for one in subscription.destinations], [{"id": destination.id, "uri": destination.uri}])
        with self.assertRaises(ngrok.Error) as raised:
            api.event_destinations.delete(destination.id)
        self.assertEqual((raised.exception.http_status_code, raised.exception.error_code), (400, "ERR_NGROK_5112"))
        api.event_subscriptions.delete(subscription.id)
        api.event_destinations.delete(destination.id)

    def test_codes_of_the_target(self):
        for target, code in [
            (None, 5100),
            (Dict(nothing={}), 236),
            (Dict(debug={"log": True}, webhook={"url": "https://example.test/"}), 5115),
        ]:
            with self.assertRaises(ngrok.Error) as raised:
                client().event_destinations.create(format="json", target=target)
            self.assertEqual(raised.exception.error_code, "ERR_NGROK_%d" % code)
        with self.assertRaises(ngrok.Error) as raised:
            client().event_destinations.create(target=Dict(debug={"log": True}))
        self.assertEqual(raised.exception.error_code, "ERR_NGROK_235")


class Sources(unittest.TestCase):
    def test_their_life(self):
        api = client()
        subscription = api.event_subscriptions.create()
        self.assertEqual(subscription.sources, [])
        sources = api.event_sources
        kind = "http_request_complete.v0"
        made = sources.create(subscription.id, kind)
        self.assertEqual(plain(made), {"type": kind, "uri": subscription.uri + "/sources/" + kind, "fields": [], "filter": ""})
        self.assertEqual(sources.get(subscription.id, kind), made)
        # The package sends no body at all.
        self.assertEqual(sources.update(subscription.id, kind), made)
        sources.create(subscription.id, "api_key_created.v0")
        listed = sources.list(subscription.id)
        self.assertEqual([one.type for one in listed.sources], [kind, "api_key_created.v0"])
        self.assertEqual(listed.uri, subscription.uri + "/sources")
        for call, status, code in [
            (lambda: sources.create(subscription.id, kind), 400, 5127),
            (lambda: sources.create(subscription.id, "nothing.v0"), 400, 238),
            (lambda: sources.create(subscription.id), 400, 238),
            (lambda: sources.get(subscription.id, "tcp_connection_closed.v0"), 404, 5125),
            (lambda: sources.delete(subscription.id, "tcp_connection_closed.v0"), 404, 5125),
            (lambda: sources.list("esb_" + "0" * 27), 404, 5123),
        ]:
            with self.assertRaises(ngrok.Error) as raised:
                call()
            self.assertEqual((raised.exception.http_status_code, raised.exception.error_code), (status, "ERR_NGROK_%d" % code))
        # An update of the subscription sends `sources: []` whether or not it was named.
        changed = api.event_subscriptions.update(subscription.id, description="x")
        self.assertEqual([one.type for one in changed.sources], [kind, "api_key_created.v0"])
        changed = api.event_subscriptions.update(subscription.id, sources=[Dict(type=kind, fields=["conn.client_ip"])])
        self.assertEqual([plain(one)["fields"] for one in changed.sources], [["conn.client_ip"]])
        self.assertIsNone(sources.delete(subscription.id, kind))
        self.assertEqual(sources.list(subscription.id).sources, [])


class Endpoints(unittest.TestCase):
    def make(self, **more):
        host = name("endpoint") + ".culvert.localhost"
        status, made = raw("POST", "/endpoints", dict(url="http://" + host, upstream_url="http://127.0.0.1:9", **more))
        self.assertEqual(status, 201, made)
        return made

    def test_read_listed_by_id_and_url_and_changed(self):
        api = client()
        one, two = self.make(), self.make()
        found = [endpoint.id for endpoint in api.endpoints.list(id=[one["id"], two["id"]])]
        self.assertEqual(found, [two["id"], one["id"]])
        self.assertEqual([endpoint.id for endpoint in api.endpoints.list(url=[one["url"]])], [one["id"]])
        page = api.endpoints.list(id=[one["id"], two["id"]], limit="1")
        self.assertEqual([endpoint.id for endpoint in page], [two["id"], one["id"]], "links repeat the ids")
        with self.assertRaises(ngrok.Error) as raised:
            api.endpoints.update(one["id"], url="tcp://other.culvert.localhost:1")
        self.assertEqual(raised.exception.error_code, "ERR_NGROK_18005")
        with self.assertRaises(ngrok.Error) as raised:
            api.endpoints.update(one["id"], url=two["url"])
        self.assertEqual(raised.exception.error_code, "ERR_NGROK_18017")
        changed = api.endpoints.update(one["id"], url=one["url"], bindings=["public"], description="d")
        self.assertEqual((changed.description, changed.bindings, changed.url), ("d", ["public"], one["url"]))
        for endpoint in (one, two):
            api.endpoints.delete(endpoint["id"])

    def test_a_traffic_policy_runs_or_is_refused(self):
        api = client()
        policy = '{"on_http_request":[{"actions":[{"type":"deny"}]}]}'
        url = "http://" + name("policy") + ".culvert.localhost"
        try:
            made = api.endpoints.create(url=url, type="cloud", traffic_policy=policy)
        except ngrok.Error as error:
            self.assertEqual((error.http_status_code, error.error_code), (400, "ERR_NGROK_18002"))
            return
        self.assertEqual(made.traffic_policy, policy, "byte for byte")
        api.endpoints.delete(made.id)


class Oneself(unittest.TestCase):
    def test_root_and_self(self):
        status, root = raw("GET", "/")
        self.assertEqual((status, root["uri"]), (200, URL + "/"))
        status, me = raw("GET", "/self")
        self.assertEqual((status, me["api_key"]["token"]), (200, None))
        self.assertNotIn(TOKEN, str(me))


if __name__ == "__main__":
    unittest.main()
