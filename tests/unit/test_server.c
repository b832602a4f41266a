/* server: keys, counts by address, request slots, listening environment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <cmocka.h>

#include "conf/conf.h"
#include "engine/base/mem.h"
#include "server/auth.h"
#include "server/peers.h"
#include "server/slots.h"

static struct conf *conf_of(int argc, ...)
{
    char *argv[8];
    va_list ap;
    va_start(ap, argc);
    for (int i = 0; i < argc; i++)
        argv[i] = va_arg(ap, char *);
    va_end(ap);
    struct conf *c;
    struct err e;
    assert_int_equal(conf_parse(&c, argc, argv, NULL, &e), 0);
    return c;
}

static void test_auth(void **st)
{
    (void)st;
    struct auth a = {0};
    struct err e;
    assert_true(auth_ok(&a, NULL, NULL, NULL)); /* no keys, no check */
    struct conf *c = conf_of(2, "--api-key=sk-1", "--api-key=sk-22");
    assert_int_equal(auth_load(&a, c, &e), 0);
    static const char *const good[] = {"Bearer sk-1", "bearer   sk-22", "BEARER\tsk-1"};
    static const char *const bad[] = {
        "",           "Bearer",       "Bearer ",      "Bearer sk-",  "sk-1",       "Basic sk-1",
        "Bearersk-1", "Bearer sk-1 ", "Bearer sk-11", "Bearer SK-1", "Bearer sk-2"};
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
        assert_true(auth_ok(&a, good[i], NULL, NULL));
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        assert_false(auth_ok(&a, bad[i], NULL, NULL));
    assert_false(auth_ok(&a, NULL, NULL, NULL));
    assert_true(auth_ok(&a, NULL, "sk-22", NULL));
    assert_false(auth_ok(&a, NULL, "sk-3", NULL));
    conf_free(c);
    auth_free(&a);
}

static void test_auth_file(void **st)
{
    (void)st;
    char path[] = "/tmp/stepd-keys-XXXXXX";
    int fd = mkstemp(path);
    const char text[] = "# comment\n\n  sk-a \t\r\nsk b#c\n";
    assert_int_equal(write(fd, text, sizeof(text) - 1), (ssize_t)sizeof(text) - 1);
    struct auth a = {0};
    struct err e;
    struct conf *c = conf_of(2, "--api-key-file", path);
    assert_int_equal(auth_load(&a, c, &e), 0);
    assert_int_equal(a.n, 2);
    assert_true(auth_ok(&a, "Bearer sk-a", NULL, NULL));
    assert_true(auth_ok(&a, "Bearer sk b#c", NULL, NULL));
    /* A file without keys must not open the door, and the old keys stay. */
    assert_int_equal(ftruncate(fd, 11), 0);
    assert_int_equal(auth_load(&a, c, &e), ERR_INVAL);
    assert_true(auth_ok(&a, "Bearer sk-a", NULL, NULL));
    assert_false(auth_ok(&a, NULL, NULL, NULL));
    close(fd);
    unlink(path);
    assert_int_equal(auth_load(&a, c, &e), ERR_IO);
    assert_int_equal(a.n, 2);
    conf_free(c);
    c = conf_of(2, "--api-key=x", "--api-key=y");
    for (long k = 1; k <= 2; k++) {
        mem_fail_after(k, false);
        assert_int_equal(auth_load(&a, c, &e), ERR_NOMEM);
        mem_fail_after(0, false);
        assert_true(auth_ok(&a, "Bearer sk-a", NULL, NULL));
    }
    conf_free(c);
    auth_free(&a);
}

static struct sockaddr_in6 v6(const char *text)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6};
    assert_int_equal(inet_pton(AF_INET6, text, &a.sin6_addr), 1);
    return a;
}

static void test_peers(void **st)
{
    (void)st;
    struct peers *p = peers_new(2);
    struct peer_key k[3] = {0};
    struct sockaddr_in6 a = v6("::ffff:10.0.0.1"), b = v6("2001:db8::1"), c = v6("2001:db8::2"),
                        d = v6("2001:db8:0:1::1"), l = v6("::1");
    struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a000001)};
    peers_add(p, (struct sockaddr *)&a, &k[0]);
    assert_true(peers_allow(p, (struct sockaddr *)&a4));
    peers_add(p, (struct sockaddr *)&a4, &k[1]); /* the same host, by the other family */
    assert_false(peers_allow(p, (struct sockaddr *)&a));
    assert_true(peers_allow(p, (struct sockaddr *)&b));
    peers_del(p, &k[1]);
    peers_del(p, &k[1]); /* twice is once */
    assert_true(peers_allow(p, (struct sockaddr *)&a));
    /* One /64 is one host. */
    peers_add(p, (struct sockaddr *)&b, &k[1]);
    peers_add(p, (struct sockaddr *)&c, &k[2]);
    assert_false(peers_allow(p, (struct sockaddr *)&b));
    assert_true(peers_allow(p, (struct sockaddr *)&d));
    for (int i = 0; i < 10; i++) {
        struct peer_key free_key = {0};
        peers_add(p, (struct sockaddr *)&l, &free_key);
        assert_false(free_key.counted);
    }
    assert_true(peers_allow(p, (struct sockaddr *)&l));
    assert_true(peers_allow(p, NULL));
    mem_fail_after(1, false);
    struct peer_key lost = {0};
    peers_add(p, (struct sockaddr *)&d, &lost);
    mem_fail_after(0, false);
    assert_false(lost.counted);
    for (int i = 0; i < 3; i++)
        peers_del(p, &k[i]);
    peers_free(p);
}

static void test_slots(void **st)
{
    (void)st;
    struct slots t = {0};
    uint64_t id[200], old;
    assert_null(slots_find(&t, 0));
    assert_null(slots_find(&t, 12345));
    for (int i = 0; i < 200; i++) {
        struct slot *s = slots_take(&t, 1 + i % 3);
        assert_non_null(s);
        s->index = i;
        id[i] = s->id;
    }
    assert_int_equal(t.n_used, 200);
    for (int i = 0; i < 200; i++)
        assert_int_equal(slots_find(&t, id[i])->index, i);
    old = id[7];
    slots_drop(&t, slots_find(&t, old));
    assert_null(slots_find(&t, old));
    struct slot *s = slots_take(&t, 1);
    assert_int_not_equal(s->id, old); /* the place is used again, its id is not */
    assert_null(slots_find(&t, old));
    assert_int_equal(t.n_used, 200);
    slots_free(&t);
    for (long k = 1; k < 20; k++) {
        mem_fail_after(k, true);
        s = slots_take(&t, 2);
        mem_fail_after(0, false);
        if (s)
            slots_drop(&t, s);
        assert_int_equal(t.n_used, 0);
        slots_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auth),
        cmocka_unit_test(test_auth_file),
        cmocka_unit_test(test_peers),
        cmocka_unit_test(test_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
