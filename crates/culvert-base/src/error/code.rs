//! A constant for each error code. [`crate::error::refusal`] has the table of classes and messages.

#![allow(missing_docs, reason = "the table has the message of each code")]

use std::fmt;

use crate::error::refusal::{CODES, CodeRow};

/// An error code, such as `ERR_NGROK_105` on the wire. Every value has a row in [`CODES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(u16);

impl Code {
    /// The code with this number. A number without a row fails to compile.
    const fn new(number: u16) -> Self {
        let mut index = 0;
        while index < CODES.len() {
            if CODES[index].number == number {
                return Self(number);
            }
            index += 1;
        }
        panic!("this code has no row in CODES");
    }

    /// The code with this number, or `None` if it has no row.
    pub fn find(number: u16) -> Option<Self> {
        let row = CODES.iter().find(|row| row.number == number)?;
        Some(Self(row.number))
    }

    /// The number without its prefix.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The row of [`CODES`] that describes this code.
    pub fn row(self) -> &'static CodeRow {
        CODES
            .iter()
            .find(|row| row.number == self.0)
            .expect("Code::new accepts only listed numbers")
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ERR_NGROK_{}", self.0)
    }
}

pub const AGENT_METADATA_TOO_LONG: Code = Code::new(100);
pub const AGENT_ACCOUNT_SUSPENDED: Code = Code::new(103);
pub const AUTHTOKEN_MALFORMED: Code = Code::new(105);
pub const AUTHTOKEN_UNKNOWN: Code = Code::new(107);
pub const AGENT_SESSION_LIMIT_REACHED: Code = Code::new(108);
pub const AGENT_AUTH_MALFORMED: Code = Code::new(109);
pub const AGENT_ADDRESS_RESTRICTED: Code = Code::new(115);
pub const AGENT_INGRESS_OF_ANOTHER_ACCOUNT: Code = Code::new(122);
pub const CREDENTIAL_MISSING: Code = Code::new(200);
pub const AUTHORIZATION_MALFORMED: Code = Code::new(201);
pub const API_KEY_TOKEN_MALFORMED: Code = Code::new(202);
pub const API_KEY_INVALID: Code = Code::new(203);
pub const ACCOUNT_SUSPENDED: Code = Code::new(205);
pub const CREDENTIAL_NOT_API_KEY: Code = Code::new(206);
pub const CREDENTIAL_IS_API_KEY_ID: Code = Code::new(208);
pub const BODY_NOT_JSON_TYPE: Code = Code::new(210);
pub const BODY_NOT_ACCEPTED: Code = Code::new(211);
pub const BODY_UNREADABLE: Code = Code::new(212);
pub const BODY_NOT_OBJECT: Code = Code::new(213);
pub const BODY_FIELD_UNKNOWN: Code = Code::new(214);
pub const BODY_FIELD_INVALID: Code = Code::new(215);
pub const API_VERSION_UNSUPPORTED: Code = Code::new(217);
pub const CALLER_ADDRESS_RESTRICTED: Code = Code::new(220);
pub const ABUSE_REPORTS_RETIRED: Code = Code::new(221);
pub const REFERENCE_NOT_ID: Code = Code::new(223);
pub const TOO_MANY_REQUESTS: Code = Code::new(226);
pub const REFERENCE_WRONG_KIND: Code = Code::new(227);
pub const QUERY_UNREADABLE: Code = Code::new(230);
pub const QUERY_PARAMETER_UNKNOWN: Code = Code::new(231);
pub const QUERY_PARAMETER_REPEATED: Code = Code::new(232);
pub const PAGE_LIMIT_OUT_OF_RANGE: Code = Code::new(233);
pub const TARGET_FORMAT_UNKNOWN: Code = Code::new(235);
pub const TARGET_TYPE_UNKNOWN: Code = Code::new(236);
pub const EVENT_TYPE_UNKNOWN: Code = Code::new(238);
pub const TIME_MALFORMED: Code = Code::new(241);
pub const REFERENCE_KIND_NOT_ALLOWED: Code = Code::new(243);
pub const PAGE_LIMIT_NOT_NUMBER: Code = Code::new(244);
pub const ENDPOINT_TYPE_NOT_CLOUD: Code = Code::new(248);
pub const LIST_FILTER_INVALID: Code = Code::new(250);
pub const HOST_INVALID: Code = Code::new(260);
pub const IDEMPOTENCY_KEY_INVALID: Code = Code::new(261);
pub const IDEMPOTENCY_KEY_OF_OTHER_REQUEST: Code = Code::new(262);
pub const IDEMPOTENCY_KEY_RUNNING: Code = Code::new(263);
pub const IDEMPOTENCY_ANSWERS_FULL: Code = Code::new(264);
pub const IDEMPOTENCY_RIGHTS_REDUCED: Code = Code::new(265);
pub const PRECONDITION_FAILED: Code = Code::new(266);
pub const PRECONDITION_INVALID: Code = Code::new(267);
pub const SEARCH_TEXT_INVALID: Code = Code::new(268);
pub const SEARCH_HAS_TOKEN: Code = Code::new(269);
pub const SEARCH_QUERY_INVALID: Code = Code::new(270);
pub const AGENT_CREDENTIAL_DELETED: Code = Code::new(300);
pub const BIND_MALFORMED: Code = Code::new(301);
pub const BIND_ADDRESS_UNAVAILABLE: Code = Code::new(307);
pub const BIND_ADDRESS_FORBIDDEN: Code = Code::new(308);
pub const BIND_NAME_FORBIDDEN: Code = Code::new(316);
pub const BIND_WILDCARD_NOT_RESERVED: Code = Code::new(318);
pub const BIND_NAME_NOT_RESERVED: Code = Code::new(319);
pub const BIND_NAME_OF_ANOTHER_ACCOUNT: Code = Code::new(320);
pub const AGENT_ENDPOINT_LIMIT_REACHED: Code = Code::new(324);
pub const BIND_NAME_INVALID: Code = Code::new(326);
pub const BIND_PROTOCOL_UNSUPPORTED: Code = Code::new(332);
pub const AGENT_ENDPOINT_UNKNOWN: Code = Code::new(333);
pub const BIND_URL_IN_USE: Code = Code::new(334);
pub const ENDPOINT_TOKEN_INVALID: Code = Code::new(335);
pub const BIND_RANDOM_ADDRESS_FORBIDDEN: Code = Code::new(356);
pub const LABELLED_TUNNELS_RETIRED: Code = Code::new(358);
pub const ENDPOINT_OPTION_INVALID: Code = Code::new(359);
pub const BIND_LABELS_FORBIDDEN: Code = Code::new(399);
pub const DOMAIN_REGION_UNKNOWN: Code = Code::new(400);
pub const DOMAIN_WILDCARD_NOT_FIRST: Code = Code::new(402);
pub const DOMAIN_WILDCARD_NOT_ALONE: Code = Code::new(403);
pub const DOMAIN_CHARACTER_INVALID: Code = Code::new(406);
pub const DOMAIN_LABEL_START_INVALID: Code = Code::new(407);
pub const DOMAIN_LABEL_END_INVALID: Code = Code::new(408);
pub const DOMAIN_LABEL_EMPTY: Code = Code::new(409);
pub const DOMAIN_LABEL_HYPHENS: Code = Code::new(410);
pub const DOMAIN_TOP_LEVEL_NOT_PUBLIC: Code = Code::new(411);
pub const DOMAIN_RESERVED_BY_ACCOUNT: Code = Code::new(413);
pub const DOMAIN_RESERVED_BY_ANOTHER: Code = Code::new(414);
pub const PLATFORM_WILDCARD_NOT_RESERVABLE: Code = Code::new(416);
pub const WILDCARD_OVERLAPS_ANOTHER_ACCOUNT: Code = Code::new(417);
pub const DOMAIN_DESCRIPTION_TOO_LONG: Code = Code::new(420);
pub const DOMAIN_METADATA_TOO_LONG: Code = Code::new(421);
pub const DOMAIN_UPDATE_EMPTY: Code = Code::new(422);
pub const DOMAIN_TOO_LONG: Code = Code::new(423);
pub const DOMAIN_IDNA_INVALID: Code = Code::new(429);
pub const CERTIFICATE_AND_POLICY_GIVEN: Code = Code::new(434);
pub const MANAGEMENT_AUTHORITY_UNSUPPORTED: Code = Code::new(435);
pub const MANAGED_CERTIFICATE_NOT_DETACHABLE: Code = Code::new(436);
pub const MANAGEMENT_POLICY_MISSING: Code = Code::new(437);
pub const DOMAIN_UNDERSCORE: Code = Code::new(438);
pub const PLATFORM_SUBDOMAIN_MANAGEMENT: Code = Code::new(439);
pub const PLATFORM_SUBDOMAIN_CERTIFICATE: Code = Code::new(440);
pub const ADDRESS_IN_USE: Code = Code::new(446);
pub const DOMAIN_TOO_FEW_LABELS: Code = Code::new(448);
pub const RESOLVES_TO_REGION_REPEATED: Code = Code::new(456);
pub const ADDRESS_REGION_UNKNOWN: Code = Code::new(500);
pub const TCP_ADDRESS_UNAVAILABLE: Code = Code::new(503);
pub const ADDRESS_DESCRIPTION_TOO_LONG: Code = Code::new(504);
pub const ADDRESS_METADATA_TOO_LONG: Code = Code::new(505);
pub const ADDRESS_UPDATE_EMPTY: Code = Code::new(506);
pub const DOMAIN_LABEL_TOO_LONG: Code = Code::new(513);
pub const DOMAIN_PUNYCODE_TOO_LONG: Code = Code::new(514);
pub const ACL_RULE_INVALID: Code = Code::new(600);
pub const CREDENTIAL_DESCRIPTION_TOO_LONG: Code = Code::new(604);
pub const CREDENTIAL_METADATA_TOO_LONG: Code = Code::new(605);
pub const CREDENTIAL_UPDATE_EMPTY: Code = Code::new(606);
pub const SSH_KEY_REGISTERED_BY_ACCOUNT: Code = Code::new(609);
pub const SSH_KEY_REGISTERED_BY_ANOTHER: Code = Code::new(610);
pub const SSH_KEY_MISSING: Code = Code::new(611);
pub const SSH_KEY_INVALID: Code = Code::new(612);
pub const NOT_ADMIN: Code = Code::new(630);
pub const OWNER_UNKNOWN: Code = Code::new(634);
pub const READ_ONLY: Code = Code::new(635);
pub const OWNER_INACTIVE: Code = Code::new(636);
pub const API_KEY_EXPIRED: Code = Code::new(640);
pub const API_KEY_OUTSIDE_NETWORKS: Code = Code::new(641);
pub const API_KEY_LACKS_SCOPE: Code = Code::new(642);
pub const API_KEY_CANNOT_WIDEN: Code = Code::new(643);
pub const LAST_ADMIN: Code = Code::new(644);
pub const INVITATION_INVALID: Code = Code::new(645);
pub const USER_EMAIL_TAKEN: Code = Code::new(646);
pub const CONSOLE_SIGN_IN_DENIED: Code = Code::new(647);
pub const CONSOLE_SIGN_IN_FAILED: Code = Code::new(648);
pub const CONSOLE_PROVIDER_UNUSABLE: Code = Code::new(649);
pub const RIGHT_TO_USE_MISSING: Code = Code::new(650);
pub const GRANT_IN_USE: Code = Code::new(651);
pub const GRANTS_TOO_MANY: Code = Code::new(652);
pub const API_KEY_BREAKS_RULE: Code = Code::new(653);
pub const LOCK_OUT: Code = Code::new(660);
pub const NAME_CHARACTER_INVALID: Code = Code::new(661);
pub const NAME_LIKE_USER: Code = Code::new(662);
pub const AGENT_STREAM_TYPE_UNKNOWN: Code = Code::new(800);
pub const AGENT_REQUEST_MALFORMED: Code = Code::new(801);
pub const AGENT_REQUEST_TIMED_OUT: Code = Code::new(802);
pub const AGENT_RESTART_UNSUPPORTED: Code = Code::new(804);
pub const AGENT_STOP_UNSUPPORTED: Code = Code::new(805);
pub const AGENT_UPDATE_UNSUPPORTED: Code = Code::new(806);
pub const AGENT_STOP_FAILED: Code = Code::new(807);
pub const AGENT_RESTART_FAILED: Code = Code::new(808);
pub const AGENT_UPDATE_FAILED: Code = Code::new(809);
pub const AGENT_DISCONNECTED: Code = Code::new(810);
pub const AGENT_VERSION_UNSUPPORTED: Code = Code::new(811);
pub const AGENT_REQUEST_TOO_LONG: Code = Code::new(812);
pub const SSH_NO_KEY_OFFERED: Code = Code::new(1100);
pub const SSH_TOO_MANY_KEYS_OFFERED: Code = Code::new(1101);
pub const SSH_KEY_NOT_REGISTERED: Code = Code::new(1102);
pub const SSH_SECOND_SESSION: Code = Code::new(1104);
pub const SSH_FORWARD_REPEATED: Code = Code::new(1105);
pub const SSH_CLI_VERSION_UNSUPPORTED: Code = Code::new(1106);
pub const SSH_COMMAND_MISSING: Code = Code::new(1107);
pub const SSH_COMMAND_UNKNOWN: Code = Code::new(1108);
pub const SSH_FLAG_UNSUPPORTED: Code = Code::new(1109);
pub const SSH_COMMAND_TIMED_OUT: Code = Code::new(1111);
pub const SSH_FORWARD_MISSING: Code = Code::new(1112);
pub const SSH_ADDRESS_GIVEN_TWICE: Code = Code::new(1114);
pub const SSH_PORT_GIVEN_TWICE: Code = Code::new(1115);
pub const SSH_TCP_HOST_MISSING: Code = Code::new(1116);
pub const SSH_TCP_PORT_MISSING: Code = Code::new(1117);
pub const SSH_HOSTNAME_GIVEN_TWICE: Code = Code::new(1118);
pub const SSH_SUBDOMAIN_GIVEN_TWICE: Code = Code::new(1119);
pub const SSH_HOSTNAME_AND_SUBDOMAIN_GIVEN: Code = Code::new(1120);
pub const SSH_UPDATE_UNSUPPORTED: Code = Code::new(1121);
pub const SSH_RESTART_UNSUPPORTED: Code = Code::new(1122);
pub const SSH_PROXY_PROTOCOL_UNSUPPORTED: Code = Code::new(1123);
pub const IP_POLICY_UPDATE_EMPTY: Code = Code::new(1400);
pub const IP_RULE_UPDATE_EMPTY: Code = Code::new(1401);
pub const IP_RULE_POLICY_UNKNOWN: Code = Code::new(1402);
pub const IP_RULE_FIELD_MISSING: Code = Code::new(1405);
pub const IP_RULE_CIDR_MALFORMED: Code = Code::new(1406);
pub const IP_RULE_CIDR_REPEATED: Code = Code::new(1408);
pub const IP_RULE_CIDR_HOST_BITS: Code = Code::new(1409);
pub const IP_RULE_CIDR_WITHOUT_MASK: Code = Code::new(1413);
pub const IP_RULE_POLICY_NOT_ID: Code = Code::new(1414);
pub const IP_RULE_LAST_OF_DASHBOARD: Code = Code::new(1419);
pub const IP_POLICY_IN_USE: Code = Code::new(1420);
pub const IP_RULE_DESCRIPTION_TOO_LONG: Code = Code::new(1421);
pub const IP_RULE_ACTION_UNKNOWN: Code = Code::new(1422);
pub const IP_POLICY_ACTION_RETIRED: Code = Code::new(1423);
pub const ENDPOINT_CONFIGURATIONS_RETIRED: Code = Code::new(1608);
pub const RESTRICTION_POLICY_UNKNOWN: Code = Code::new(1801);
pub const RESTRICTION_TYPE_TAKEN: Code = Code::new(1802);
pub const RESTRICTION_TYPE_UNKNOWN: Code = Code::new(1803);
pub const RESTRICTION_POLICY_MISSING: Code = Code::new(1804);
pub const CERTIFICATE_UNREADABLE: Code = Code::new(1900);
pub const PRIVATE_KEY_MISSING: Code = Code::new(1901);
pub const PRIVATE_KEY_ENCRYPTED: Code = Code::new(1902);
pub const PRIVATE_KEY_UNSUPPORTED: Code = Code::new(1903);
pub const MANAGEMENT_KEY_TYPE_UNKNOWN: Code = Code::new(1909);
pub const PEM_HEADERS: Code = Code::new(1910);
pub const PEM_NOT_CERTIFICATE: Code = Code::new(1911);
pub const CA_PEM_SEVERAL_CERTIFICATES: Code = Code::new(1912);
pub const CERTIFICATE_NOT_CA: Code = Code::new(1913);
pub const CA_DESCRIPTION_TOO_LONG: Code = Code::new(1914);
pub const CA_METADATA_TOO_LONG: Code = Code::new(1915);
pub const TLS_CERTIFICATE_DESCRIPTION_TOO_LONG: Code = Code::new(1916);
pub const TLS_CERTIFICATE_METADATA_TOO_LONG: Code = Code::new(1917);
pub const CA_PEM_MISSING: Code = Code::new(1919);
pub const CA_PEM_MALFORMED: Code = Code::new(1920);
pub const PEM_TOO_LONG: Code = Code::new(1921);
pub const CERTIFICATE_PEM_WITHOUT_CERTIFICATE: Code = Code::new(1922);
pub const PRIVATE_KEY_MISMATCH: Code = Code::new(1923);
pub const PRIVATE_KEY_PEM_WITH_CERTIFICATE: Code = Code::new(1924);
pub const CERTIFICATE_PEM_WITH_KEY: Code = Code::new(1925);
pub const CERTIFICATE_CHAIN_OUT_OF_ORDER: Code = Code::new(1926);
pub const SSH_CERTIFICATE_KEY_UNREADABLE: Code = Code::new(1934);
pub const SSH_CA_KEY_TYPE_UNKNOWN: Code = Code::new(1936);
pub const SSH_CA_DESCRIPTION_TOO_LONG: Code = Code::new(1937);
pub const SSH_CA_METADATA_TOO_LONG: Code = Code::new(1938);
pub const SSH_CA_KEY_SIZE_INVALID: Code = Code::new(1939);
pub const SSH_CA_KEY_SIZE_WITHOUT_RSA: Code = Code::new(1940);
pub const SSH_CA_CURVE_UNKNOWN: Code = Code::new(1941);
pub const SSH_CA_CURVE_WITHOUT_ECDSA: Code = Code::new(1942);
pub const SSH_HOST_CERTIFICATE_DESCRIPTION_TOO_LONG: Code = Code::new(1945);
pub const SSH_HOST_CERTIFICATE_METADATA_TOO_LONG: Code = Code::new(1946);
pub const SSH_USER_CERTIFICATE_DESCRIPTION_TOO_LONG: Code = Code::new(1947);
pub const SSH_USER_CERTIFICATE_METADATA_TOO_LONG: Code = Code::new(1948);
pub const SSH_HOST_CERTIFICATE_CA_UNKNOWN: Code = Code::new(1949);
pub const SSH_CERTIFICATE_KEY_UNSUPPORTED: Code = Code::new(1950);
pub const SSH_USER_CERTIFICATE_CA_UNKNOWN: Code = Code::new(1951);
pub const SSH_CERTIFICATE_KEY_MISSING: Code = Code::new(1952);
pub const SSH_USER_CERTIFICATE_VALIDITY_EMPTY: Code = Code::new(1962);
pub const SSH_HOST_CERTIFICATE_VALIDITY_EMPTY: Code = Code::new(1963);
pub const CERTIFICATE_AUTHORITY_IN_USE: Code = Code::new(1964);
pub const TLS_CERTIFICATE_UNKNOWN: Code = Code::new(1965);
pub const TLS_CERTIFICATE_IN_USE: Code = Code::new(1966);
pub const POLICY_EXPRESSION_INVALID: Code = Code::new(2200);
pub const POLICY_ACTION_UNKNOWN: Code = Code::new(2201);
pub const POLICY_ACTION_WRONG_PHASE: Code = Code::new(2202);
pub const POLICY_CONFIG_MALFORMED: Code = Code::new(2203);
pub const POLICY_VALUE_INVALID: Code = Code::new(2204);
pub const POLICY_ACTION_WRONG_PROTOCOL: Code = Code::new(2205);
pub const POLICY_RULE_WITHOUT_ACTION: Code = Code::new(2206);
pub const POLICY_ACTION_UNREACHABLE: Code = Code::new(2207);
pub const POLICY_COMPRESSION_UNKNOWN: Code = Code::new(2214);
pub const POLICY_NUMBER_OUT_OF_RANGE: Code = Code::new(2215);
pub const POLICY_IP_POLICY_UNKNOWN: Code = Code::new(2216);
pub const POLICY_PREFIX_INVALID: Code = Code::new(2217);
pub const POLICY_LIST_TOO_LONG: Code = Code::new(2218);
pub const POLICY_STRING_TOO_LONG: Code = Code::new(2221);
pub const POLICY_VALUE_NOT_ALLOWED: Code = Code::new(2222);
pub const POLICY_VALUE_EMPTY: Code = Code::new(2223);
pub const POLICY_TEMPLATE_INVALID: Code = Code::new(2224);
pub const POLICY_PHASE_WRONG_PROTOCOL: Code = Code::new(2230);
pub const POLICY_LIST_DUPLICATE: Code = Code::new(2231);
pub const POLICY_FIELD_MISSING: Code = Code::new(2234);
pub const POLICY_TRAFFIC_UNHANDLED: Code = Code::new(2235);
pub const POLICY_UNREADABLE: Code = Code::new(2236);
pub const POLICY_STRING_TOO_SHORT: Code = Code::new(2237);
pub const POLICY_SECOND_LOGIN: Code = Code::new(2239);
pub const POLICY_VARIABLE_TOO_DEEP: Code = Code::new(2250);
pub const POLICY_VARIABLE_MALFORMED: Code = Code::new(2252);
pub const BASIC_AUTH_USER_INVALID: Code = Code::new(2257);
pub const BASIC_AUTH_PASSWORD_INVALID: Code = Code::new(2258);
pub const POLICY_TOO_MANY_RULES: Code = Code::new(2264);
pub const POLICY_RULE_TOO_LONG: Code = Code::new(2265);
pub const POLICY_SECRET_REFUSED: Code = Code::new(2270);
pub const AUTHTOKEN_MISSING: Code = Code::new(4018);
pub const BOT_NAME_EMPTY: Code = Code::new(4109);
pub const BOT_NAME_TOO_LONG: Code = Code::new(4110);
pub const BOT_CHANGE_NOT_ADMIN: Code = Code::new(4111);
pub const BOT_NAME_TAKEN: Code = Code::new(4112);
pub const TARGET_MISSING: Code = Code::new(5100);
pub const DESTINATION_UNKNOWN: Code = Code::new(5103);
pub const ARN_NOT_ROLE: Code = Code::new(5104);
pub const AWS_AUTH_MISSING: Code = Code::new(5106);
pub const AWS_AUTH_EMPTY: Code = Code::new(5107);
pub const TARGET_TYPE_CHANGED: Code = Code::new(5108);
pub const DESTINATION_IN_USE: Code = Code::new(5112);
pub const TARGET_NOT_SINGLE: Code = Code::new(5115);
pub const AWS_AUTH_NOT_SINGLE: Code = Code::new(5116);
pub const ARN_PARTITION_UNKNOWN: Code = Code::new(5118);
pub const ARN_WRONG_SERVICE: Code = Code::new(5119);
pub const ARN_MALFORMED: Code = Code::new(5120);
pub const SUBSCRIPTION_UNKNOWN: Code = Code::new(5123);
pub const EVENT_SOURCE_UNKNOWN: Code = Code::new(5125);
pub const EVENT_TYPE_REPEATED: Code = Code::new(5127);
pub const ARN_WRONG_RESOURCE: Code = Code::new(5130);
pub const DATADOG_API_KEY_MISSING: Code = Code::new(5133);
pub const DATADOG_SITE_UNKNOWN: Code = Code::new(5134);
pub const AZURE_RULE_ID_MALFORMED: Code = Code::new(5136);
pub const AZURE_STREAM_NAME_MALFORMED: Code = Code::new(5137);
pub const AZURE_URI_MALFORMED: Code = Code::new(5138);
pub const DELIVERY_VALUE_INVALID: Code = Code::new(5140);
pub const FIELDS_NOT_TRAFFIC: Code = Code::new(5401);
pub const FILTER_NOT_TRAFFIC: Code = Code::new(5402);
pub const EVENT_FIELD_UNKNOWN: Code = Code::new(5403);
pub const EVENT_FILTER_INVALID: Code = Code::new(5404);
pub const EVENT_FILTER_FIELD_UNKNOWN: Code = Code::new(5405);
pub const EVENT_FILTER_FIELD_UNUSABLE: Code = Code::new(5406);
pub const EVENT_QUERY_INVALID: Code = Code::new(5407);
pub const TRAFFIC_NOT_RETAINED: Code = Code::new(5408);
pub const REQUEST_NOT_REPLAYABLE: Code = Code::new(5409);
pub const AUDIT_HOLDS_TOO_MANY: Code = Code::new(5410);
pub const ALERT_RULES_TOO_MANY: Code = Code::new(5411);
pub const ALERT_CONDITION_INVALID: Code = Code::new(5412);
pub const STATISTICS_QUERY_INVALID: Code = Code::new(5430);
pub const INGRESS_DESCRIPTION_TOO_LONG: Code = Code::new(6700);
pub const INGRESS_METADATA_TOO_LONG: Code = Code::new(6701);
pub const INGRESS_DOMAIN_INVALID: Code = Code::new(6704);
pub const INGRESS_DOMAIN_OF_PLATFORM: Code = Code::new(6705);
pub const INGRESS_DOMAIN_TAKEN: Code = Code::new(6706);
pub const EDGES_RETIRED: Code = Code::new(7008);
pub const AGENT_URL_MALFORMED: Code = Code::new(9037);
pub const AGENT_URL_TRAILING_SLASH: Code = Code::new(9038);
pub const INTERNAL_ERROR: Code = Code::new(10_000);
pub const BINDING_UNKNOWN: Code = Code::new(15_005);
pub const BINDING_REPEATED: Code = Code::new(15_006);
pub const ENDPOINT_URL_UNREADABLE: Code = Code::new(18_001);
pub const ENDPOINT_POLICY_WRONG_TYPE: Code = Code::new(18_002);
pub const ENDPOINT_URL_WITHOUT_PORT: Code = Code::new(18_003);
pub const ENDPOINT_UPDATE_EMPTY: Code = Code::new(18_004);
pub const ENDPOINT_SCHEME_CHANGED: Code = Code::new(18_005);
pub const ENDPOINT_URL_NOT_RESERVED: Code = Code::new(18_006);
pub const ENDPOINT_DESCRIPTION_TOO_LONG: Code = Code::new(18_012);
pub const ENDPOINT_METADATA_TOO_LONG: Code = Code::new(18_013);
pub const ENDPOINT_FIELD_INVALID: Code = Code::new(18_014);
pub const ENDPOINT_WITHOUT_UPSTREAM: Code = Code::new(18_015);
pub const ENDPOINT_URL_NOT_POOLED: Code = Code::new(18_016);
pub const ENDPOINT_POOLING_DISABLED: Code = Code::new(18_017);
pub const KUBERNETES_SCHEME_UNSUPPORTED: Code = Code::new(18_018);
pub const ENDPOINT_SCHEME_UNKNOWN: Code = Code::new(18_022);
pub const ENDPOINT_PORT_WRONG: Code = Code::new(18_023);
pub const CSR_INVALID: Code = Code::new(19_001);
pub const OPERATOR_INVALID: Code = Code::new(19_002);
pub const ENDPOINT_SELECTOR_INVALID: Code = Code::new(19_003);
pub const VAULT_NAME_CHARACTER_INVALID: Code = Code::new(23_000);
pub const VAULT_NAME_EMPTY: Code = Code::new(23_001);
pub const VAULT_NAME_TOO_LONG: Code = Code::new(23_002);
pub const VAULT_IN_USE: Code = Code::new(23_003);
pub const VAULT_NAME_TAKEN: Code = Code::new(23_004);
pub const SECRET_NAME_CHARACTER_INVALID: Code = Code::new(24_000);
pub const SECRET_NAME_EMPTY: Code = Code::new(24_001);
pub const SECRET_NAME_TOO_LONG: Code = Code::new(24_002);
pub const SECRET_VALUE_EMPTY: Code = Code::new(24_003);
pub const SECRET_VALUE_TOO_LONG: Code = Code::new(24_004);
pub const SECRET_NAME_TAKEN: Code = Code::new(24_005);
pub const VAULT_ID_UNKNOWN: Code = Code::new(24_006);
pub const VAULT_NOT_SINGLE: Code = Code::new(24_008);
pub const VAULT_NAME_UNKNOWN: Code = Code::new(24_009);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_of_the_table_has_one_name_in_its_order() {
        let source = include_str!("code.rs");
        let named: Vec<u16> = source
            .lines()
            .filter(|line| line.starts_with("pub const "))
            .filter_map(|line| line.split_once("Code::new(")?.1.strip_suffix(");"))
            .map(|number| number.replace('_', "").parse().unwrap())
            .collect();
        let rows: Vec<u16> = CODES.iter().map(|row| row.number).collect();
        assert_eq!(named, rows);
    }
}
