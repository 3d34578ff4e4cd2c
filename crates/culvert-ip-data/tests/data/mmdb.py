"""Writes the MMDB files beside it: `pip install mmdb_writer`, then `python mmdb.py`.

The networks are those of the loopback and of documentation (RFC 5737, RFC 3849). The places are made up.
"""

from netaddr import IPSet
from mmdb_writer import MMDBWriter

VIENNA = {
    "city": {"names": {"de": "Wien", "en": "Vienna"}},
    "continent": {"code": "EU", "names": {"de": "Europa", "en": "Europe"}},
    "country": {"is_in_european_union": True, "iso_code": "AT", "names": {"de": "Österreich", "en": "Austria"}},
    "location": {"accuracy_radius": 20, "latitude": 48.2049, "longitude": 16.3662, "metro_code": 501,
                 "time_zone": "Europe/Vienna"},
    "postal": {"code": "1010"},
    "registered_country": {"is_in_european_union": True, "iso_code": "DE", "names": {"en": "Germany"}},
    "subdivisions": [{"iso_code": "9", "names": {"en": "Wien Region"}}],
}
# Without a city, and not in the European Union: the field is absent, as in real databases.
AMERICA = {
    "continent": {"code": "NA", "names": {"en": "North America"}},
    "country": {"iso_code": "US", "names": {"en": "United States"}},
    "location": {"accuracy_radius": 1000, "latitude": 37.751, "longitude": -97.822},
    "registered_country": {"iso_code": "US", "names": {"en": "United States"}},
}


def write(name, kind, networks):
    writer = MMDBWriter(ip_version=6, ipv4_compatible=True, database_type=kind, languages=["en"],
                        description={"en": "Test data"}, int_type="u32")
    for network, record in networks:
        writer.insert_network(IPSet([network]), record)
    writer.to_db_file(name)


write("geo.mmdb", "Test-City", [("127.0.0.0/8", VIENNA), ("198.51.100.0/24", AMERICA), ("2001:db8::/32", AMERICA)])
write("country.mmdb", "Test-Country", [("127.0.0.0/8", {"country": AMERICA["country"]})])
write("asn.mmdb", "Test-ASN", [
    ("127.0.0.0/8", {"autonomous_system_number": 64500, "autonomous_system_organization": "Example Net"}),
    ("203.0.113.0/24", {"autonomous_system_number": 64501, "autonomous_system_organization": "Other Net"}),
])
