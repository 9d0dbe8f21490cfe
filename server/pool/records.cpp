#include "records.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "protocol/text.h"

namespace fargpu::server::pool {
namespace {

using Json = nlohmann::json;

constexpr std::size_t text_bytes_max = 2048;

template <class Type>
constexpr bool is_list = false;
template <class Element>
constexpr bool is_list<std::vector<Element>> = true;
template <class Type>
constexpr bool is_table = false;
template <class Value>
constexpr bool is_table<std::map<std::string, Value>> = true;

// What is as usual is left out.
template <class Type>
Json json_of(const Type& value);

template <class Record>
class Writer {
 public:
  Writer(Json& to, const Record& record) : to_(to), record_(record) {}
  template <class Type>
  void operator()(const char* name, Type Record::*member, std::size_t = 0) {
    static const Record usual;
    if (const Type& value = record_.*member; value != usual.*member) to_[name] = json_of(value);
  }

 private:
  Json& to_;
  const Record& record_;
};

template <class Type>
Json json_of(const Type& value) {
  if constexpr (is_list<Type>) {
    Json list = Json::array();
    for (const auto& element : value) list.push_back(json_of(element));
    return list;
  } else if constexpr (is_table<Type>) {
    Json table = Json::object();
    for (const auto& [name, element] : value) table[name] = json_of(element);
    return table;
  } else if constexpr (std::is_enum_v<Type>) {
    return static_cast<unsigned>(value);
  } else if constexpr (std::is_arithmetic_v<Type> || std::is_same_v<Type, std::string>) {
    return value;
  } else {
    Json object = Json::object();
    Writer<Type> writer(object, value);
    fields(writer, std::type_identity<Type>());
    return object;
  }
}

template <class Type>
bool take(const Json& json, Type& value, std::size_t most);

template <class Record>
class Reader {
 public:
  Reader(const Json& from, Record& record) : from_(from), record_(record), good_(from.is_object()) {}
  bool good() const { return good_; }
  /// `most`: elements of a list or table.
  template <class Type>
  void operator()(const char* name, Type Record::*member, std::size_t most = 0) {
    if (!good_) return;
    const auto place = from_.find(name);
    if (place != from_.end()) good_ = take(*place, record_.*member, most);
  }

 private:
  const Json& from_;
  Record& record_;
  bool good_;
};

template <class Type>
bool take(const Json& json, Type& value, std::size_t most) {
  if constexpr (is_list<Type>) {
    if (!json.is_array() || json.size() > most) return false;
    value.resize(json.size());
    for (std::size_t i = 0; i < json.size(); ++i)
      if (!take(json[i], value[i], devices_max)) return false;
    return true;
  } else if constexpr (is_table<Type>) {
    if (!json.is_object() || json.size() > most) return false;
    for (const auto& [name, element] : json.items())
      if (!is_name(name) || !take(element, value[name], devices_max)) return false;
    return true;
  } else if constexpr (std::is_same_v<Type, bool>) {
    if (!json.is_boolean()) return false;
    value = json.get<bool>();
    return true;
  } else if constexpr (std::is_enum_v<Type>) {
    std::uint32_t number = 0;
    if (!take(json, number, 0) || number > static_cast<std::uint32_t>(Type::stopping)) return false;
    value = static_cast<Type>(number);
    return true;
  } else if constexpr (std::is_arithmetic_v<Type>) {
    if (!json.is_number_integer()) return false;
    // A number that was written as a negative one has none of the unsigned kind.
    if (json.is_number_unsigned()) {
      const auto number = json.get<std::uint64_t>();
      value = static_cast<Type>(number);
      return std::in_range<Type>(number);
    }
    const auto number = json.get<std::int64_t>();
    value = static_cast<Type>(number);
    return std::in_range<Type>(number);
  } else if constexpr (std::is_same_v<Type, std::string>) {
    if (!json.is_string()) return false;
    const auto& text = json.get_ref<const std::string&>();
    if (text.size() > text_bytes_max) return false;
    value = printable(text, text_bytes_max);
    return true;
  } else {
    Reader<Type> reader(json, value);
    fields(reader, std::type_identity<Type>());
    return reader.good();
  }
}

// --- what each record has: for writing and for reading --------------------------------------------------------------

template <class Visitor>
void fields(Visitor& visit, std::type_identity<Limits>) {
  visit("memory", &Limits::memory_bytes);
  visit("compute", &Limits::compute_percent);
  visit("leases", &Limits::leases);
}
template <class Visitor>
void fields(Visitor& visit, std::type_identity<TenantRecord>) {
  visit("limits", &TenantRecord::limits);
  visit("weight", &TenantRecord::weight);
}
template <class Visitor>
void fields(Visitor& visit, std::type_identity<HostRecord::Device>) {
  visit("uuid", &HostRecord::Device::uuid);
  visit("model", &HostRecord::Device::model);
  visit("memory", &HostRecord::Device::bytes);
}
template <class Visitor>
void fields(Visitor& visit, std::type_identity<HostRecord::Tenant>) {
  visit("limits", &HostRecord::Tenant::limits);
  visit("devices", &HostRecord::Tenant::devices, devices_max);
}
template <class Visitor>
void fields(Visitor& visit, std::type_identity<HostRecord>) {
  visit("identity", &HostRecord::identity);
  visit("address", &HostRecord::address);
  visit("version", &HostRecord::version);
  visit("devices", &HostRecord::devices, devices_max);
  visit("sessions_max", &HostRecord::sessions_max);
  visit("names_tenants", &HostRecord::names_tenants);
  visit("tenants", &HostRecord::tenants, tenants_max);
}
template <class Visitor>
void fields(Visitor& visit, std::type_identity<RoomRecord::Device>) {
  visit("memory", &RoomRecord::Device::bytes);
  visit("compute", &RoomRecord::Device::percent);
  visit("idle", &RoomRecord::Device::idle);
}
template <class Visitor>
void fields(Visitor& visit, std::type_identity<RoomRecord>) {
  visit("state", &RoomRecord::state);
  visit("devices", &RoomRecord::devices, devices_max);
  visit("sessions", &RoomRecord::sessions);
  visit("load", &RoomRecord::load);
  visit("seen", &RoomRecord::seen);
}
template <class Visitor>
void fields(Visitor& visit, std::type_identity<RequestRecord>) {
  visit("front", &RequestRecord::front);
  visit("tenant", &RequestRecord::tenant);
  visit("job", &RequestRecord::job);
  visit("gpus", &RequestRecord::gpus);
  visit("hosts", &RequestRecord::hosts);
  visit("memory", &RequestRecord::memory_bytes);
  visit("compute", &RequestRecord::compute_percent);
  visit("priority", &RequestRecord::priority);
  visit("waits", &RequestRecord::waits);
  visit("only_front", &RequestRecord::only_front);
  visit("prefers_front", &RequestRecord::prefers_front);
  visit("avoid", &RequestRecord::avoid, avoid_max);
  visit("unreached", &RequestRecord::unreached, avoid_max);
  visit("doubted", &RequestRecord::doubted, avoid_max);
  visit("program", &RequestRecord::program);
  visit("client", &RequestRecord::client);
  visit("since", &RequestRecord::since);
}
template <class Visitor>
void fields(Visitor& visit, std::type_identity<LeaseRecord>) {
  visit("tenant", &LeaseRecord::tenant);
  visit("job", &LeaseRecord::job);
  visit("gpus", &LeaseRecord::gpus);
  visit("memory", &LeaseRecord::memory_bytes);
  visit("compute", &LeaseRecord::compute_percent);
  visit("priority", &LeaseRecord::priority);
  visit("fence", &LeaseRecord::fence);
  visit("program", &LeaseRecord::program);
  visit("client", &LeaseRecord::client);
}
template <class Visitor>
void fields(Visitor& visit, std::type_identity<Part>) {
  visit("host", &Part::host);
  visit("address", &Part::address);
  visit("identity", &Part::identity);
  visit("gpus", &Part::gpus);
}
template <class Visitor>
void fields(Visitor& visit, std::type_identity<AnswerRecord>) {
  visit("parts", &AnswerRecord::parts, parts_max);
  visit("may_change", &AnswerRecord::may_change);
  visit("text", &AnswerRecord::text);
}

// --- what must hold of a record beyond its form ---------------------------------------------------------------------

bool is_job(const std::string& text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}
template <class Record>
bool sound(const Record&) {
  return true;
}
bool sound(const HostRecord& record) { return is_name(record.identity) && !record.address.empty(); }
bool sound(const RequestRecord& record) {
  return is_name(record.front) && is_name(record.tenant) && is_job(record.job) && record.compute_percent <= 100 &&
         record.hosts >= 1 && std::all_of(record.avoid.begin(), record.avoid.end(), is_name) &&
         std::all_of(record.unreached.begin(), record.unreached.end(), is_name) &&
         std::all_of(record.doubted.begin(), record.doubted.end(), is_name);
}
bool sound(const LeaseRecord& record) {
  return is_name(record.tenant) && is_job(record.job) && record.compute_percent <= 100 && record.gpus <= devices_max;
}
bool sound(const AnswerRecord& record) {
  return std::all_of(record.parts.begin(), record.parts.end(), [](const Part& part) {
    return is_name(part.host) && !part.address.empty() && part.gpus >= 1 && part.gpus <= devices_max;
  });
}

}  // namespace

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= name_bytes_max && text != "." && text != ".." &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char letter) { return letter > ' ' && letter != '/' && letter != 0x7f; });
}

template <class Record>
std::string write(const Record& record) {
  return json_of(record).dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <class Record>
std::optional<Record> read(const std::string& text) {
  if (text.size() > record_bytes_max) return std::nullopt;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Record record;
  if (!take(json, record, 0) || !sound(record)) return std::nullopt;
  return record;
}

#define FARGPU_RECORD(Record)                        \
  template std::string write<Record>(const Record&); \
  template std::optional<Record> read<Record>(const std::string&)
FARGPU_RECORD(TenantRecord);
FARGPU_RECORD(HostRecord);
FARGPU_RECORD(RoomRecord);
FARGPU_RECORD(RequestRecord);
FARGPU_RECORD(LeaseRecord);
FARGPU_RECORD(AnswerRecord);
#undef FARGPU_RECORD

}  // namespace fargpu::server::pool
