/* Connections counted by remote address. Loopback and unix sockets are not counted: a proxy on the same machine
 * speaks for everybody. Loop thread. */
#ifndef SERVER_PEERS_H
#define SERVER_PEERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct peers;
struct peer_key {
    uint8_t addr[16]; /* IPv6, IPv4 mapped */
    bool counted;
};

struct peers *peers_new(int limit); /* 0 = no limit */
void peers_free(struct peers *p);
/* May one more connection of this address come? Counts nothing. */
bool peers_allow(const struct peers *p, const struct sockaddr *a);
/* Count one in; `k` remembers it for peers_del. A failed allocation leaves it uncounted. */
void peers_add(struct peers *p, const struct sockaddr *a, struct peer_key *k);
void peers_del(struct peers *p, struct peer_key *k);

#endif
