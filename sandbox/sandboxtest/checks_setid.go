package sandboxtest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

func setIDChecks() []check {
	return []check{
		{name: "commands make no set-user-ID files", run: checkSetID},
		{name: "tar extracts", programs: true, shared: true, run: programCheck("tar", tarScript, tarForbidden)},
		{name: "cp -p preserves", programs: true, shared: true, run: programCheck("cp", copyScript, copyForbidden)},
		{name: "install installs", programs: true, shared: true, run: programCheck("install", installScript, installForbidden)},
		{name: "git init --shared shares", programs: true, shared: true, run: programCheck("git", gitScript, "chmod 4755 shared/a")},
		{name: "npm ci installs", programs: true, shared: true, run: programCheck("npm", npmScript, "chmod 4755 node_modules/dep/cli.js")},
	}
}

// checkSetID tries it in every writable place. On the host, the control, each
// way that is refused inside must set the bits.
func checkSetID(ctx context.Context, e *env) error {
	host, err := parseOutput[map[string]string](e.runNaive(ctx, "set-id", filepath.Join(e.base, "set-id")))
	if err != nil {
		return err
	}
	var wrong []error
	for name, want := range setIDAnswers(host) {
		if got := host[name]; !slices.Contains(want, got) && strings.HasPrefix(got, "ok ") {
			continue // it works, unlike inside
		} else if !slices.Contains(want, got) && !strings.HasPrefix(got, "ENOSYS ") {
			wrong = append(wrong, fmt.Errorf("positive control: %s: %s on the host", name, got))
		}
	}
	if sets := slices.DeleteFunc(slices.Collect(maps.Values(host)), func(got string) bool { return !hasSpecialBits(got) }); len(sets) < 30 {
		wrong = append(wrong, fmt.Errorf("positive control: %d attempts set a bit on the host", len(sets)))
	}
	for _, place := range []string{sandbox.WorkspaceDir, "/tmp", "/home/agent"} {
		inside, err := parseOutput[map[string]string](e.expectOutput(ctx, "set-id", place+"/set-id"))
		if err != nil {
			return err
		}
		if len(inside) != len(host) {
			wrong = append(wrong, fmt.Errorf("%s: %d attempts inside, %d on the host", place, len(inside), len(host)))
		}
		for name, want := range setIDAnswers(host) {
			if !slices.Contains(want, inside[name]) {
				wrong = append(wrong, fmt.Errorf("%s: %s: %q, want one of %q", place, name, inside[name], want))
			}
		}
	}
	return errors.Join(append(wrong, noSetID(e))...)
}

func hasSpecialBits(answer string) bool {
	_, mode, _ := strings.Cut(answer, " ")
	return len(mode) == 4 && strings.Contains("234567", mode[:1])
}

// setIDAnswers returns the right answers to each attempt.
func setIDAnswers(attempts map[string]string) map[string][]string {
	want := map[string][]string{
		"inherited by directory":  {"ok 2755"},
		"not inherited by file":   {"ok 644"},
		"in turn":                 {"ok 644"},
		"through a symlink":       {"EPERM 644"},
		"openat2":                 {"ENOSYS absent"},
		"mkdir":                   {"ok 755"},
		"mknod":                   {"ok 755"},
		"mknod fifo":              {"ok 755"},
		"mknodat":                 {"ok 755"},
		"open":                    {"ok 755"},
		"open, umask 0":           {"ok 777"},
		"open, umask 027":         {"ok 750"},
		"open exclusively":        {"ok 555"},
		"open what is there":      {"ok 644"},
		"open, creating nothing":  {"ok 644"},
		"open a fifo":             {"ok 644", "EPERM 644"},
		"openat":                  {"ok 755"},
		"open without a name":     {"ok 755", "ENOTSUP absent", "EISDIR absent"},
		"memory by /proc":         {"ok absent"},
		"link":                    {"EPERM 644"},
		"security.capability":     {"EPERM 644", "ENOTSUP 644"},
		"directory, capabilities": {"EPERM 755", "ENOTSUP 755"},
		"old chmod":               {"EPERM 644"},
		"old chmod, group":        {"EPERM 644"},
		"old chmod, directory":    {"ok 2755"},
		"chmod, high bits":        {"EPERM 644"},
		"chmod at a bad name":     {"ENOENT 644"},
		"creat":                   {"ok 755"},
		"old open":                {"ok 755"},
		"old mknod":               {"ok 755"},
		"old mkdir":               {"ok 755"},
	}
	for name := range attempts {
		kind, rest, _ := strings.Cut(name, " ")
		mode := rest[strings.LastIndexByte(rest, ' ')+1:]
		before := map[string]string{"file": "644", "directory": "755"}[kind]
		if want[name] != nil || before == "" {
			continue
		}
		switch {
		case mode == "4755" || mode == "6755" || mode == "2755" && kind == "file":
			want[name] = []string{"EPERM " + before}
		default:
			want[name] = []string{"ok " + mode}
		}
		if strings.HasPrefix(rest, "fchmodat2") { // missing before Linux 6.6 and in gVisor
			want[name] = append(want[name], "ENOSYS "+before)
		}
	}
	maps.DeleteFunc(want, func(name string, _ []string) bool { return attempts[name] == "" })
	return want
}

// noSetID asserts, from the host, that no file in the workspace would run as
// its owner.
func noSetID(e *env) error {
	return filepath.WalkDir(e.workspace, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSetuid != 0 || info.Mode()&fs.ModeSetgid != 0 && !d.IsDir() {
			return fmt.Errorf("%s has mode %v on the host", path, info.Mode())
		}
		if n, err := unix.Lgetxattr(path, "security.capability", nil); err == nil && n > 0 {
			return fmt.Errorf("%s has capabilities on the host", path)
		}
		return nil
	})
}

// Scripts that run programs. Each exits with 0 only if every step worked, and sets
// no bit that is refused. The forbidden ones set such a bit.
const (
	tarScript = `tar --no-same-owner -xf plain.tar && tar --no-same-owner -xpf plain.tar && test $(stat -c %a d/exe) = 755 && test $(stat -c %a d/data) = 640 &&
test $(stat -c %a d/shared) = 2775 && test "$(cat d/link)" = data`
	tarForbidden = `tar --no-same-owner -xpf special.tar`
	copyScript   = `printf x >a && chmod 754 a && touch -d 2001-02-03T04:05:06 a && mkdir -p from/shared && chmod 2755 from/shared && printf y >from/shared/b &&
cp -p a b && test $(stat -c %a.%Y b) = $(stat -c %a.%Y a) && cp -rp from to && test $(stat -c %a to/shared) = 2755 && cmp from/shared/b to/shared/b &&
cp planted copy && test $(stat -c %a copy) = 755`
	copyForbidden    = `cp -p planted copy2`
	installScript    = `printf x >a && install -m 755 a b && test $(stat -c %a b) = 755 && install -d -m 2755 dir && test $(stat -c %a dir) = 2755 && install -D a x/y/z && cmp a x/y/z`
	installForbidden = `install -m 4755 a c`
	gitScript        = `git init -q --shared shared && test $(stat -c %A shared/.git/objects | cut -c 7) = s && cd shared && printf x >a && git add a &&
git -c user.name=a -c user.email=a@example.com commit -q -m one && git fsck --strict && test $(git rev-list --count HEAD) = 1 &&
git init -q --bare --shared=all ../bare && git push -q ../bare HEAD:refs/heads/main`
	npmScript = `npm ci --offline --no-audit --no-fund --no-update-notifier --loglevel=error && test "$(node_modules/.bin/dep)" = dep && test $(stat -c %a node_modules/dep/cli.js) = 755`
)

// programCheck runs a script inside, which must work, and then one that must be
// refused. On the host, the control, both must work and the second must leave a
// bit.
func programCheck(name, script, forbidden string) func(ctx context.Context, e *env) error {
	return func(ctx context.Context, e *env) error {
		there, err := e.run(ctx, sandbox.Command{Argv: []string{"sh", "-c", "command -v stat cut cmp " + name}})
		if err != nil {
			return err
		}
		if !there.Status.Success() {
			return fmt.Errorf("the image has no %s", name)
		}
		host, inside := filepath.Join(e.base, name), filepath.Join(e.workspace, name)
		if err := errors.Join(furnishPrograms(host, os.Geteuid()), furnishPrograms(inside, workspaceOwner())); err != nil {
			return err
		}
		defer os.RemoveAll(inside)
		if _, err := exec.LookPath(name); err == nil {
			if out, err := runScript(ctx, host, "("+script+") && "+forbidden); err != nil {
				return fmt.Errorf("positive control: %s on the host: %w: %s", name, err, out)
			}
			if err := noSetID(&env{workspace: host}); err == nil {
				return fmt.Errorf("positive control: %s set no bit on the host", name)
			}
		}
		if err := os.Remove(filepath.Join(host, "planted")); err != nil {
			return err
		}
		r, err := e.run(ctx, sandbox.Command{Argv: []string{"sh", "-e", "-c", "export npm_config_cache=/tmp/npm; umask 022; cd " + name + "; " + script}})
		if err != nil {
			return err
		}
		if !r.Status.Success() {
			return fmt.Errorf("%s: %s: %s%s", name, r.Status, r.out, r.errOut)
		}
		r, err = e.run(ctx, sandbox.Command{Argv: []string{"sh", "-c", "cd " + name + "; " + forbidden}})
		if err != nil {
			return err
		}
		if r.Status.Success() || !strings.Contains(r.errOut, "not permitted") {
			return fmt.Errorf("%s: %s: %s%s, want EPERM", forbidden, r.Status, r.out, r.errOut)
		}
		// What existed before keeps its bits.
		info, err := os.Stat(filepath.Join(inside, "planted"))
		if err != nil || info.Mode()&fs.ModeSetuid == 0 {
			return errorf("the set-user-ID file of the workspace: %v, %w", info, err)
		}
		if err := os.Remove(filepath.Join(inside, "planted")); err != nil {
			return err
		}
		return noSetID(e)
	}
}

func runScript(ctx context.Context, dir, script string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "sh", "-e", "-c", "umask 022; "+script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "npm_config_cache="+filepath.Join(dir, "cache"))
	return cmd.CombinedOutput()
}

func workspaceOwner() int {
	if os.Geteuid() == 0 {
		return ownerID
	}
	return os.Geteuid()
}

type entry struct {
	name, body string
	mode       int64
	kind       byte
}

func makeArchive(owner int, entries ...entry) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Typeflag: e.kind, Uid: owner, Gid: owner, Format: tar.FormatGNU}
		switch e.kind {
		case tar.TypeReg:
			h.Size = int64(len(e.body))
		case tar.TypeSymlink:
			h.Linkname = e.body
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if e.kind == tar.TypeReg {
			if _, err := w.Write([]byte(e.body)); err != nil {
				return nil, err
			}
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// furnishPrograms makes the directory that a program works in: archives, a
// package for npm, and an existing set-user-ID file.
func furnishPrograms(dir string, owner int) error {
	plain, err := makeArchive(
		owner,
		entry{name: "d/", mode: 0o755, kind: tar.TypeDir},
		entry{name: "d/exe", mode: 0o755, kind: tar.TypeReg, body: "exe"},
		entry{name: "d/data", mode: 0o640, kind: tar.TypeReg, body: "data"},
		entry{name: "d/shared/", mode: 0o2775, kind: tar.TypeDir},
		entry{name: "d/link", mode: 0o777, kind: tar.TypeSymlink, body: "data"},
	)
	if err != nil {
		return err
	}
	special, err := makeArchive(owner, entry{name: "s", mode: 0o4755, kind: tar.TypeReg, body: "s"})
	if err != nil {
		return err
	}
	const manifest = `{"name":"dep","version":"1.0.0","bin":{"dep":"cli.js"}}`
	dep, err := makeArchive(
		owner,
		entry{name: "package/package.json", mode: 0o644, kind: tar.TypeReg, body: manifest},
		entry{name: "package/cli.js", mode: 0o755, kind: tar.TypeReg, body: "#!/usr/bin/env node\nconsole.log('dep')\n"},
	)
	if err != nil {
		return err
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(dep); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files := map[string][]byte{
		"plain.tar": plain, "special.tar": special, "dep.tgz": zipped.Bytes(), "planted": []byte("planted"),
		"package.json": []byte(`{"name":"app","version":"1.0.0","dependencies":{"dep":"file:dep.tgz"}}`),
		"package-lock.json": []byte(`{"name":"app","version":"1.0.0","lockfileVersion":3,"requires":true,"packages":{
"":{"name":"app","version":"1.0.0","dependencies":{"dep":"file:dep.tgz"}},
"node_modules/dep":{"version":"1.0.0","resolved":"file:dep.tgz","bin":{"dep":"cli.js"}}}}`),
	}
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, data, 0o644), os.Lchown(path, owner, owner)); err != nil {
			return err
		}
	}
	return errors.Join(os.Lchown(dir, owner, owner), os.Chmod(filepath.Join(dir, "planted"), 0o755|fs.ModeSetuid))
}
