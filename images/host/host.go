package host

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/caisson-run/caisson/images"
)

// Options configures the image host. The zero value is the machine's /usr.
type Options struct {
	// Toolchains are extra directories, such as one in /opt or a home
	// directory, bound read-only at their own absolute paths. They come from
	// the user's configuration, never from a workspace.
	Toolchains []string
	// Mask are directories below /usr or a toolchain to hide.
	Mask []string
	// Path is the host's PATH, for [images.RootFS].Path and [FindAbsent]; ""
	// searches nothing.
	Path string
	// Environ is the host's environment as NAME=value, for HOME and toolchain
	// variables such as RUSTUP_HOME. If it lacks HOME, the process's own
	// counts.
	Environ []string
	// Workspace, if not "", is a directory whose programs don't count even if
	// it is below /usr or a toolchain.
	Workspace string
	// UID and GID are the commands' identity in /etc/passwd; zero means 10001.
	UID, GID int
	// Accounts are additional users and groups.
	Accounts []images.Account
	// Root stands for the host's /, which is the default. Binds have their
	// sources below it.
	Root string
}

// programDirs are the top-level entries with programs and libraries besides
// /usr: symlinks into it on most systems (usrmerge), directories on others.
var programDirs = []string{"bin", "lib", "lib32", "lib64", "libo32", "libx32", "sbin"}

// etcPatterns are the entries in /etc that programs need and that reveal
// nothing of the host: no accounts, keys, host name, environment or git
// configuration. The names are Debian's, then Fedora's and Arch's for
// certificates and TLS policy. * matches within one name.
var etcPatterns = []string{
	"alternatives", "ld.so.cache", "localtime", "mime.types", "nsswitch.conf", "os-release", "protocols", "services",
	"java-*-openjdk", "ssl/certs", "ssl/openssl.cnf", "ssl/cert.pem",
	"ca-certificates/extracted", "crypto-policies", "pki/ca-trust/extracted", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf",
}

// RootFS describes the image host: the host's own programs, read-only, over a
// skeleton with none of its data. It fails with [images.ErrUnsupported] if the
// host has no /usr or no shell, and with [images.ErrInvalid] for a toolchain or
// mask that is not absolute or would show more than a toolchain.
func RootFS(ctx context.Context, o Options) (*images.RootFS, error) {
	b, err := newBuilder(ctx, &o)
	if err != nil {
		return nil, err
	}
	for _, d := range b.readSearchPath(o.Path) {
		if d.inside != "" && !slices.Contains(b.fs.Path, d.inside) {
			b.fs.Path = append(b.fs.Path, d.inside)
		}
	}
	b.addVariables(o)
	if err := sealLayout(b.fs, b.readVersions()); err != nil {
		return nil, fmt.Errorf("digest host image: %w", err)
	}
	return b.fs, context.Cause(ctx)
}

// newBuilder returns a builder with the complete image except its environment.
func newBuilder(ctx context.Context, o *Options) (*builder, error) {
	o.Root = filepath.Clean("/" + o.Root)
	b := &builder{root: o.Root, fs: &images.RootFS{Reference: images.Reference{Scheme: images.SchemeHost}, Dirs: mountPoints(), Files: mountFiles()}}
	if o.Workspace != "" {
		b.workspace = o.Workspace
		if end, err := filepath.EvalSymlinks(b.hostPath(o.Workspace)); err == nil {
			b.workspace = end
		}
	}
	b.fs.Files = append(b.fs.Files, accountFiles(append([]images.Account{{Name: "agent", UID: cmp.Or(o.UID, DefaultUID), GID: cmp.Or(o.GID, DefaultGID), Home: "/home/agent"}}, o.Accounts...))...)
	if err := b.addPrograms(); err != nil {
		return nil, err
	}
	if err := b.addConfiguration(); err != nil {
		return nil, err
	}
	if err := b.addToolchains(*o); err != nil {
		return nil, err
	}
	if err := b.addSubmounts(ctx); err != nil {
		return nil, err
	}
	if err := b.addMasks(o.Mask); err != nil {
		return nil, err
	}
	b.fs.Symlinks = append(b.fs.Symlinks, images.Symlink{Path: "/var/tmp", Target: "/tmp"}, images.Symlink{Path: "/var/run", Target: "/run"})
	return b, nil
}

func (o Options) getenv(name string) string {
	for _, v := range slices.Backward(o.Environ) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

func (o Options) home() string {
	home := o.getenv("HOME")
	if !filepath.IsAbs(home) {
		home, _ = os.UserHomeDir() // "" if there is none
	}
	if !filepath.IsAbs(home) {
		return ""
	}
	return filepath.Clean(home)
}

type builder struct {
	root      string
	workspace string // without symlinks; may be ""
	fs        *images.RootFS
}

// hostPath returns the host's path for a path in the image.
func (b *builder) hostPath(p string) string { return filepath.Join(b.root, p) }

// imagePath returns the path in the image for a path of the host.
func (b *builder) imagePath(p string) string {
	return filepath.Clean("/" + strings.TrimPrefix(p, b.root))
}

func (b *builder) addPrograms() error {
	if info, err := os.Stat(b.hostPath("/usr")); err != nil || !info.IsDir() {
		return fmt.Errorf("%w: host: this machine has no /usr", images.ErrUnsupported)
	}
	b.fs.Binds = append(b.fs.Binds, images.Bind{Source: b.hostPath("/usr"), Path: "/usr", IsDir: true})
	for _, name := range programDirs {
		if err := b.addEntry("/" + name); err != nil {
			return err
		}
	}
	if sh, err := os.Stat(b.hostPath("/bin/sh")); err != nil || sh.IsDir() {
		return fmt.Errorf("%w: host: this machine has no /bin/sh", images.ErrUnsupported)
	}
	return nil
}

func (b *builder) addConfiguration() error {
	for _, pattern := range etcPatterns {
		found, err := filepath.Glob(filepath.Join(escapeGlob(b.hostPath("/etc")), pattern))
		if err != nil {
			return fmt.Errorf("list %s: %w", pattern, err)
		}
		for _, host := range found {
			rel, err := filepath.Rel(b.root, host)
			if err != nil {
				return fmt.Errorf("list %s: %w", pattern, err)
			}
			if err := b.addEntry("/" + rel); err != nil {
				return err
			}
		}
	}
	return nil
}

// addEntry adds one entry: a symlink into /usr as a symlink, anything else as a
// bind of the file it resolves to. It skips missing and unreadable entries;
// programs do without them.
func (b *builder) addEntry(p string) error {
	info, err := os.Lstat(b.hostPath(p))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return nil
	case err != nil:
		return fmt.Errorf("read host image: %w", err)
	}
	source := b.hostPath(p)
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(source)
		if err != nil {
			return fmt.Errorf("read host image: %w", err)
		}
		end := target
		if !filepath.IsAbs(end) {
			end = filepath.Join(filepath.Dir(p), end)
		}
		if isBelow(filepath.Clean(end), "/usr") {
			b.fs.Symlinks = append(b.fs.Symlinks, images.Symlink{Path: p, Target: target})
			return nil
		}
		if source, err = filepath.EvalSymlinks(source); err != nil {
			return nil // dangling: the host does without it too
		}
	}
	if info, err = os.Stat(source); err != nil || !info.IsDir() && !info.Mode().IsRegular() {
		return nil
	}
	b.fs.Binds = append(b.fs.Binds, images.Bind{Source: source, Path: p, IsDir: info.IsDir()})
	return nil
}

// readVersions returns facts about the content below /usr that are cheap to
// get, for the digest: the release and the package database's state.
func (b *builder) readVersions() []string {
	var facts []string
	for _, p := range []string{"/usr/lib/os-release", "/var/lib/dpkg/status", "/lib/apk/db/installed"} {
		if sum, err := hashFile(b.hostPath(p)); err == nil {
			facts = append(facts, p+" "+sum)
		}
	}
	for _, p := range []string{"/var/lib/rpm/rpmdb.sqlite", "/usr/lib/sysimage/rpm/rpmdb.sqlite", "/var/lib/pacman/local", "/usr/bin", "/usr/lib", "/usr/local/bin"} {
		if info, err := os.Stat(b.hostPath(p)); err == nil {
			facts = append(facts, fmt.Sprintf("%s %d %d", p, info.Size(), info.ModTime().UnixNano()))
		}
	}
	return slices.Clip(facts)
}

// hashFile returns a file's SHA-256 in hex. It does not read it into memory: a
// package database has megabytes.
func hashFile(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

func escapeGlob(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}

// accountFiles returns the synthetic files in /etc: root, the accounts and
// nobody, without passwords or any of the host's users and names.
func accountFiles(accounts []images.Account) []images.File {
	passwd, group := images.AccountLines(accounts)
	return []images.File{
		{Path: "/etc/passwd", Content: fmt.Appendf(nil, "root:x:0:0:root:/root:/usr/sbin/nologin\n%snobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n", passwd)},
		{Path: "/etc/group", Content: fmt.Appendf(nil, "root:x:0:\n%snogroup:x:65534:\n", group)},
		{Path: "/etc/hosts", Content: []byte(images.Hosts)},
		{Path: "/etc/hostname", Content: []byte(images.Hostname + "\n")},
	}
}

// addSubmounts adds a bind for every mount below a bound directory. Binds are
// not recursive, so a separate /usr/local would otherwise be empty.
func (b *builder) addSubmounts(ctx context.Context) error {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for _, bind := range slices.Clone(b.fs.Binds) {
		for _, m := range mounts {
			if !bind.IsDir || !isBelow(m.Mountpoint, bind.Source) {
				continue
			}
			info, err := os.Stat(m.Mountpoint)
			if err != nil {
				continue // unreadable, or covered by another mount
			}
			p := filepath.Join(bind.Path, strings.TrimPrefix(m.Mountpoint, bind.Source))
			if !slices.ContainsFunc(b.fs.Binds, func(have images.Bind) bool { return have.Path == p }) {
				b.fs.Binds = append(b.fs.Binds, images.Bind{Source: m.Mountpoint, Path: p, IsDir: info.IsDir()})
			}
		}
	}
	return context.Cause(ctx)
}
