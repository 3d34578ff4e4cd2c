//! Data about IP addresses from the operator's files: location, network and categories.
//!
//! Locations and networks come from MMDB files, categories from lists of networks. A file is validated
//! completely when it is read (`mmdb`), so lookups cannot fail, and converted to tables (`flat`), so they
//! are fast. A lookup allocates only the text that it returns.
//!
//! A policy that uses missing data must not run as if the address had none. It is rejected when it is
//! written, and its endpoints reject traffic if the data is removed later. Each variable therefore names the
//! [`IpField`] that it reads, and [`IpData::missing`] returns the fields of a policy that no file has.

pub mod address;
mod categories;
mod flat;
mod mmdb;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use culvert_base::Fault;
use maxminddb::PathElement;
use maxminddb::PathElement::{Index, Key};

use crate::categories::Categories;
use crate::mmdb::Database;
pub use crate::mmdb::Scalar;

/// The files, as the settings name them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpDataFiles {
    /// MMDB file of places, such as GeoLite2-City (`edge.geo_database`).
    pub geo: Option<PathBuf>,
    /// MMDB file of networks, such as GeoLite2-ASN (`edge.asn_database`).
    pub asn: Option<PathBuf>,
    /// Lists of networks by the name of their category (`edge.ip_categories`).
    pub categories: Vec<(String, PathBuf)>,
}

/// A piece of data that a variable reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IpField {
    /// Name of the city, in English.
    City,
    /// Name of the continent, in English.
    Continent,
    /// Name of the country, in English.
    Country,
    /// Two-letter code of the country.
    CountryCode,
    /// Whether the country is in the European Union.
    IsEu,
    /// Latitude in degrees.
    Latitude,
    /// Longitude in degrees.
    Longitude,
    /// Code of the metropolitan area, in the United States.
    MetroCode,
    /// Postal code.
    PostalCode,
    /// Accuracy radius of the position in kilometres.
    Radius,
    /// Name of the largest subdivision of the country.
    Subdivision,
    /// Time zone, such as `Europe/Berlin`.
    Timezone,
    /// Name of the city of the registration, in English.
    RegisteredCity,
    /// Name of the continent of the registration, in English.
    RegisteredContinent,
    /// Name of the country of the registration, in English.
    RegisteredCountry,
    /// Two-letter code of the country of the registration.
    RegisteredCountryCode,
    /// Whether the country of the registration is in the European Union.
    RegisteredIsEu,
    /// Code of the metropolitan area of the registration.
    RegisteredMetroCode,
    /// Postal code of the registration.
    RegisteredPostalCode,
    /// Name of the subdivision of the country of the registration.
    RegisteredSubdivision,
    /// Time zone of the registration.
    RegisteredTimezone,
    /// Number of the autonomous system that announces the address.
    AsNumber,
    /// Name of the organization that operates the autonomous system.
    AsOrganization,
    /// Names of the operator's lists that contain the address.
    Categories,
    /// Whether the list `blocklist` contains the address.
    Blocklist,
    /// Whether the list `tor` contains the address.
    Tor,
}

/// The source of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldSource {
    Geo(&'static [PathElement<'static>]),
    Asn(&'static [PathElement<'static>]),
    Lists,
}

const EN: PathElement<'static> = Key("en");
const NAMES: PathElement<'static> = Key("names");
const LOCATION: PathElement<'static> = Key("location");
const REGISTERED: PathElement<'static> = Key("registered_country");

impl IpField {
    /// Every field, in the order of their numbers.
    pub const ALL: [Self; 26] = [
        Self::City,
        Self::Continent,
        Self::Country,
        Self::CountryCode,
        Self::IsEu,
        Self::Latitude,
        Self::Longitude,
        Self::MetroCode,
        Self::PostalCode,
        Self::Radius,
        Self::Subdivision,
        Self::Timezone,
        Self::RegisteredCity,
        Self::RegisteredContinent,
        Self::RegisteredCountry,
        Self::RegisteredCountryCode,
        Self::RegisteredIsEu,
        Self::RegisteredMetroCode,
        Self::RegisteredPostalCode,
        Self::RegisteredSubdivision,
        Self::RegisteredTimezone,
        Self::AsNumber,
        Self::AsOrganization,
        Self::Categories,
        Self::Blocklist,
        Self::Tor,
    ];

    /// The field in records of the MaxMind databases (GeoIP2 City, GeoIP2 ISP).
    const fn database_field(self) -> FieldSource {
        match self {
            Self::City => FieldSource::Geo(&[Key("city"), NAMES, EN]),
            Self::Continent => FieldSource::Geo(&[Key("continent"), NAMES, EN]),
            Self::Country => FieldSource::Geo(&[Key("country"), NAMES, EN]),
            Self::CountryCode => FieldSource::Geo(&[Key("country"), Key("iso_code")]),
            Self::IsEu => FieldSource::Geo(&[Key("country"), Key("is_in_european_union")]),
            Self::Latitude => FieldSource::Geo(&[LOCATION, Key("latitude")]),
            Self::Longitude => FieldSource::Geo(&[LOCATION, Key("longitude")]),
            Self::MetroCode => FieldSource::Geo(&[LOCATION, Key("metro_code")]),
            Self::PostalCode => FieldSource::Geo(&[Key("postal"), Key("code")]),
            Self::Radius => FieldSource::Geo(&[LOCATION, Key("accuracy_radius")]),
            Self::Subdivision => FieldSource::Geo(&[Key("subdivisions"), Index(0), NAMES, EN]),
            Self::Timezone => FieldSource::Geo(&[LOCATION, Key("time_zone")]),
            // Public databases contain only the country of the registration.
            Self::RegisteredCity => FieldSource::Geo(&[REGISTERED, Key("city"), NAMES, EN]),
            Self::RegisteredContinent => {
                FieldSource::Geo(&[REGISTERED, Key("continent"), NAMES, EN])
            }
            Self::RegisteredCountry => FieldSource::Geo(&[REGISTERED, NAMES, EN]),
            Self::RegisteredCountryCode => FieldSource::Geo(&[REGISTERED, Key("iso_code")]),
            Self::RegisteredIsEu => FieldSource::Geo(&[REGISTERED, Key("is_in_european_union")]),
            Self::RegisteredMetroCode => FieldSource::Geo(&[REGISTERED, Key("metro_code")]),
            Self::RegisteredPostalCode => FieldSource::Geo(&[REGISTERED, Key("postal_code")]),
            Self::RegisteredSubdivision => FieldSource::Geo(&[REGISTERED, Key("subdivision")]),
            Self::RegisteredTimezone => FieldSource::Geo(&[REGISTERED, Key("time_zone")]),
            Self::AsNumber => FieldSource::Asn(&[Key("autonomous_system_number")]),
            Self::AsOrganization => FieldSource::Asn(&[Key("autonomous_system_organization")]),
            Self::Categories | Self::Blocklist | Self::Tor => FieldSource::Lists,
        }
    }

    /// The path of the field in a database record.
    fn path(self) -> Option<&'static [PathElement<'static>]> {
        match self.database_field() {
            FieldSource::Geo(path) | FieldSource::Asn(path) => Some(path),
            FieldSource::Lists => None,
        }
    }

    /// The setting that names its file.
    pub const fn setting(self) -> &'static str {
        match self.database_field() {
            FieldSource::Geo(_) => "edge.geo_database",
            FieldSource::Asn(_) => "edge.asn_database",
            FieldSource::Lists => "edge.ip_categories",
        }
    }

    /// Its source, for the reference and for error messages.
    pub const fn source(self) -> &'static str {
        match self {
            Self::Blocklist => "a list named `blocklist` in `edge.ip_categories`",
            Self::Tor => "a list named `tor` in `edge.ip_categories`",
            Self::Categories => "lists of networks in `edge.ip_categories`",
            _ => match self.database_field() {
                FieldSource::Geo(_) => "a database with this field in `edge.geo_database`",
                _ => "a database with this field in `edge.asn_database`",
            },
        }
    }
}

/// A set of fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpFields(u32);

impl IpFields {
    /// Adds a field.
    pub fn insert(&mut self, field: IpField) {
        self.0 |= 1 << field as u8;
    }

    /// Whether it is one of them.
    pub fn contains(self, field: IpField) -> bool {
        self.0 & (1 << field as u8) != 0
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The union of both sets.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// A bit for each field.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = IpField> {
        IpField::ALL
            .into_iter()
            .filter(move |field| self.contains(*field))
    }

    /// The settings that name their files, each once.
    pub fn settings(self) -> Vec<&'static str> {
        let mut settings: Vec<_> = self.iter().map(IpField::setting).collect();
        settings.dedup();
        settings
    }
}

/// The contents of the files.
#[derive(Debug, Default)]
pub struct IpData {
    geo: Option<Database>,
    asn: Option<Database>,
    categories: Categories,
    fields: IpFields,
    /// Settings whose files could not be read.
    failed: Vec<&'static str>,
}

impl IpData {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// One of the files cannot be read or is damaged. The error names its setting.
    pub fn read(files: &IpDataFiles) -> Result<Self, Fault> {
        let mut faults = Vec::new();
        let data = Self::read_some(files, &mut faults);
        match faults.pop() {
            Some(fault) => Err(fault),
            None => Ok(data),
        }
    }

    /// Reads the files, and skips those that cannot be read or are damaged. Their fields are then missing.
    pub fn read_some(files: &IpDataFiles, faults: &mut Vec<Fault>) -> Self {
        let mut data = Self::default();
        let mut failed = |setting: &'static str, path: &Path, why: String| {
            data.failed.push(setting);
            faults.push(Fault::bare(format!(
                "`{setting}`: `{}` {why}",
                path.display()
            )));
        };
        if let Some(path) = &files.geo {
            match Database::read(path) {
                Ok(database) => data.geo = Some(database),
                Err(why) => failed("edge.geo_database", path, why),
            }
        }
        if let Some(path) = &files.asn {
            match Database::read(path) {
                Ok(database) => data.asn = Some(database),
                Err(why) => failed("edge.asn_database", path, why),
            }
        }
        for (name, path) in &files.categories {
            if let Err(why) = data.categories.read(name, path) {
                failed("edge.ip_categories", path, why);
            }
        }
        let mut fields = IpFields::default();
        for field in IpField::ALL {
            if data.holds(field) {
                fields.insert(field);
            }
        }
        data.fields = fields;
        data
    }

    fn holds(&self, field: IpField) -> bool {
        match (field, field.database_field()) {
            (IpField::Blocklist, _) => self.categories.has(BLOCKLIST),
            (IpField::Tor, _) => self.categories.has(TOR),
            (_, FieldSource::Lists) => !self.categories.is_empty(),
            (_, FieldSource::Geo(_)) => self.geo.as_ref().is_some_and(|it| it.holds(field)),
            (_, FieldSource::Asn(_)) => self.asn.as_ref().is_some_and(|it| it.holds(field)),
        }
    }

    /// The fields that no file has.
    pub fn missing(&self, fields: IpFields) -> IpFields {
        IpFields(fields.0 & !self.fields.0)
    }

    /// The settings whose files could not be read.
    pub fn failed(&self) -> &[&'static str] {
        &self.failed
    }

    /// A field of an address; `None` if the files have no value. For lists, see [`Self::categories`].
    pub fn get(&self, field: IpField, address: IpAddr) -> Option<Scalar<'_>> {
        // `::ffff:192.0.2.1` is an IPv4 address, and files list it as such.
        let address = address.to_canonical();
        match (field, field.database_field()) {
            (IpField::Blocklist, _) => {
                Some(Scalar::Bool(self.categories.contain(BLOCKLIST, address)))
            }
            (IpField::Tor, _) => Some(Scalar::Bool(self.categories.contain(TOR, address))),
            (_, FieldSource::Lists) => None,
            (_, FieldSource::Geo(_)) => self.geo.as_ref()?.get(address, field),
            (_, FieldSource::Asn(_)) => self.asn.as_ref()?.get(address, field),
        }
    }

    /// The categories of an address, including their parents: `com.cloudflare` is also in `com`.
    pub fn categories(&self, address: IpAddr) -> Vec<&str> {
        self.categories.of(address.to_canonical())
    }
}

/// The category of blocked addresses.
const BLOCKLIST: &str = "blocklist";
/// The category of Tor nodes.
const TOR: &str = "tor";

/// The current data. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct IpDatabases(Arc<ArcSwap<IpData>>);

impl IpDatabases {
    /// Creates a handle to this data.
    pub fn new(data: IpData) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(data)))
    }

    /// Replaces the data.
    pub fn replace(&self, data: IpData) {
        self.0.store(Arc::new(data));
    }

    /// The current data.
    pub fn now(&self) -> Arc<IpData> {
        self.0.load_full()
    }
}

#[cfg(test)]
mod tests;
