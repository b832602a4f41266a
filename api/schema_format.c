/* Formats as regular expressions over whole texts. Formats that are not here are annotations, as the drafts say. */
#include <string.h>

#include "api/schema_impl.h"

#define YEAR "(?:[1-9]\\d{3}|0[1-9]\\d{2}|00[1-9]\\d|000[1-9])"
#define LEAP "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "(?:" YEAR                                                                                     \
    "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)"          \
    "|02-(?:0[1-9]|1\\d|2[0-8]))|" LEAP "-02-29)"
#define TIME                                                                                       \
    "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define LABEL "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}"
#define HOST  LABEL "(?:\\." LABEL "){0,3}"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4  OCTET "(?:\\." OCTET "){3}"
#define H16   "[0-9A-Fa-f]{1,4}"
#define LS32  "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                       \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32      \
    "|(?:(?:" H16 ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16             \
    ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16       \
    ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16   \
    ")?::)"
#define ATOM    "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,64}"
#define ATEXT   "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
#define EMAIL   ATEXT "(?:\\." ATEXT "){0,2}@" HOST
#define PCT     "%[0-9A-Fa-f]{2}"
#define PCHAR   "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|" PCT ")"
#define QUERY   "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define USER    "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|" PCT ")*@)?"
#define AUTH    "//" USER "(?:(?:[A-Za-z0-9._~!$&'()*+,;=-]|" PCT ")*|\\[" IPV6 "\\])(?::\\d{0,5})?"
#define SCHEME  "[A-Za-z][A-Za-z0-9+.-]*:"
#define ABEMPTY "(?:/" PCHAR "*)*"
#define HIER    "(?:" AUTH ABEMPTY "|/(?:" PCHAR "+" ABEMPTY ")?|" PCHAR "+" ABEMPTY "|)"
#define NOCOLON "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|" PCT ")"
#define RELHIER "(?:" AUTH ABEMPTY "|/(?:" PCHAR "+" ABEMPTY ")?|" NOCOLON "+" ABEMPTY "|)"
#define POINTER "(?:/(?:[^~/]|~[01])*)*"
#define TIMEDUR "T(?:\\d{1,9}H(?:\\d{1,9}M(?:\\d{1,9}S)?)?|\\d{1,9}M(?:\\d{1,9}S)?|\\d{1,9}S)"
#define DURATION                                                                                   \
    "P(?:\\d{1,9}W|(?:\\d{1,9}Y(?:\\d{1,9}M(?:\\d{1,9}D)?)?|\\d{1,9}M(?:\\d{1,9}D)?|\\d{1,9}D)"    \
    "(?:" TIMEDUR ")?|" TIMEDUR ")"

static const struct {
    const char *name, *re;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", DURATION},
    {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
    {"ipv4", IPV4},
    {"ip-address", IPV4},
    {"ipv6", IPV6},
    {"email", EMAIL},
    {"idn-email", EMAIL},
    {"hostname", HOST},
    {"host-name", HOST},
    {"idn-hostname", HOST},
    {"uri", SCHEME HIER QUERY},
    {"iri", SCHEME HIER QUERY},
    {"uri-reference", "(?:" SCHEME HIER QUERY "|" RELHIER QUERY ")"},
    {"iri-reference", "(?:" SCHEME HIER QUERY "|" RELHIER QUERY ")"},
    {"json-pointer", POINTER},
    {"relative-json-pointer", "(?:0|[1-9]\\d{0,8})(?:#|" POINTER ")"},
};

const char *sc__format(const char *name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return formats[i].re;
    return NULL;
}
