package host

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/images"
)

// machine lays out a host below a directory: entries ending in / are directories,
// those with -> are links, the rest are files, executable below bin.
func machine(t *testing.T, entries ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, e := range entries {
		name, target, link := strings.Cut(e, " -> ")
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case link:
			err = os.Symlink(target, p)
		case strings.HasSuffix(e, "/"):
			err = os.MkdirAll(p, 0o755)
		case filepath.Base(filepath.Dir(p)) == "bin":
			err = os.WriteFile(p, []byte("#!"), 0o755)
		default:
			err = os.WriteFile(p, []byte(e), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func needsLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs linux")
	}
}

// binds gives the binds as path=source below root.
func binds(r *images.RootFS, root string) map[string]string {
	m := map[string]string{}
	for _, b := range r.Binds {
		m[b.Path] = strings.TrimPrefix(b.Source, root)
	}
	return m
}

var merged = []string{
	"usr/bin/sh", "usr/lib/", "usr/lib64/", "usr/sbin/", "usr/share/zoneinfo/UTC", "usr/lib/os-release",
	"bin -> usr/bin", "sbin -> usr/sbin", "lib -> usr/lib", "lib64 -> /usr/lib64",
	"etc/alternatives/x", "etc/ld.so.cache", "etc/localtime -> /usr/share/zoneinfo/UTC", "etc/os-release -> ../usr/lib/os-release",
	"etc/nsswitch.conf", "etc/ssl/certs/ca.crt", "etc/ssl/private/key.pem", "etc/ssl/openssl.cnf", "etc/java-17-openjdk/security/java.security",
	"etc/passwd", "etc/shadow", "etc/gitconfig", "etc/environment", "etc/ssh/ssh_host_rsa_key", "etc/hosts", "etc/hostname", "etc/machine-id",
	"root/.cargo/bin/cargo", "root/.cargo/bin/sh", "opt/go/bin/go", "usr/local/go/bin/go",
}

func TestHostMerged(t *testing.T) {
	needsLinux(t)
	root := machine(t, merged...)
	r, err := RootFS(t.Context(), Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, p := range []string{"/usr", "/etc/alternatives", "/etc/ld.so.cache", "/etc/nsswitch.conf", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/java-17-openjdk"} {
		want[p] = p
	}
	if diff := cmp.Diff(want, binds(r, root)); diff != "" {
		t.Errorf("binds (-want +got):\n%s", diff)
	}
	wantLinks := []images.Symlink{
		{Path: "/bin", Target: "usr/bin"},
		{Path: "/etc/localtime", Target: "/usr/share/zoneinfo/UTC"},
		{Path: "/etc/os-release", Target: "../usr/lib/os-release"},
		{Path: "/lib", Target: "usr/lib"},
		{Path: "/lib64", Target: "/usr/lib64"},
		{Path: "/sbin", Target: "usr/sbin"},
		{Path: "/var/run", Target: "/run"},
		{Path: "/var/tmp", Target: "/tmp"},
	}
	if diff := cmp.Diff(wantLinks, r.Symlinks); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	for _, f := range r.Files {
		if strings.Contains(string(f.Content), root) {
			t.Errorf("%s names the host's directory", f.Path)
		}
	}
	if i := slices.IndexFunc(r.Dirs, func(d images.Dir) bool { return d.Path == "/tmp" }); i < 0 || r.Dirs[i].Mode != 0o1777 {
		t.Error("/tmp is not 1777")
	}
}

func TestHostNotMerged(t *testing.T) {
	needsLinux(t)
	root := machine(t, "usr/bin/env", "usr/lib/", "bin/sh", "lib/libc.so", "sbin/init")
	r, err := RootFS(t.Context(), Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"/usr": "/usr", "/bin": "/bin", "/lib": "/lib", "/sbin": "/sbin"}
	if diff := cmp.Diff(want, binds(r, root)); diff != "" {
		t.Errorf("binds (-want +got):\n%s", diff)
	}
}

func TestHostWithoutShellIsUnsupported(t *testing.T) {
	needsLinux(t)
	for _, entries := range [][]string{{"usr/bin/env"}, {"bin/sh"}} {
		if _, err := RootFS(t.Context(), Options{Root: machine(t, entries...)}); !errors.Is(err, images.ErrUnsupported) {
			t.Errorf("%v: %v, want ErrUnsupported", entries, err)
		}
	}
}

func TestHostDigest(t *testing.T) {
	needsLinux(t)
	root := machine(t, merged...)
	digest := func(o Options) string {
		o.Root = root
		r, err := RootFS(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return r.Digest
	}
	first := digest(Options{})
	if again := digest(Options{}); again != first {
		t.Errorf("two digests of one machine: %s and %s", first, again)
	}
	if other := digest(Options{UID: 1000}); other == first {
		t.Error("another identity has the same digest")
	}
	if err := os.WriteFile(filepath.Join(root, "usr/lib/os-release"), []byte("VERSION=2"), 0o644); err != nil {
		t.Fatal(err)
	}
	if other := digest(Options{}); other == first {
		t.Error("another release has the same digest")
	}
}

func TestHostToolchainsAndMasks(t *testing.T) {
	needsLinux(t)
	root := machine(t, merged...)
	r, err := RootFS(t.Context(), Options{
		Root: root, Toolchains: []string{"/opt/go", "/usr/local/go", "/root/.cargo/"}, Mask: []string{"/usr/share", "/usr/absent"},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := binds(r, root)
	if got["/opt/go"] != "/opt/go" || got["/root/.cargo"] != "/root/.cargo" {
		t.Errorf("toolchains are not bound: %v", got)
	}
	if _, ok := got["/usr/local/go"]; ok {
		t.Error("a toolchain below /usr is bound a second time")
	}
	if !slices.ContainsFunc(r.Dirs, func(d images.Dir) bool { return d.Path == "/opt" }) {
		t.Error("the toolchain's parent has no mount point")
	}
	if diff := cmp.Diff([]string{"/usr/share"}, r.Masks); diff != "" {
		t.Errorf("masks (-want +got):\n%s", diff)
	}
	for _, o := range []Options{
		{Toolchains: []string{"opt/go"}},
		{Toolchains: []string{"/"}},
		{Toolchains: []string{"/etc"}},
		{Toolchains: []string{"/root"}},
		{Toolchains: []string{"/home/../etc"}},
		{Toolchains: []string{"/proc/self/root"}},
		{Mask: []string{"/etc"}},
		{Mask: []string{"usr/share"}},
	} {
		o.Root = root
		if _, err := RootFS(t.Context(), o); !errors.Is(err, images.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", o, err)
		}
	}
	if _, err := RootFS(t.Context(), Options{Root: root, Toolchains: []string{"/opt/absent"}}); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("absent toolchain: %v, want ErrNotFound", err)
	}
}

func TestHostSearchPath(t *testing.T) {
	needsLinux(t)
	root := machine(t, merged...)
	r, err := RootFS(t.Context(), Options{Root: root, Path: "/usr/local/go/bin:/root/.cargo/bin:/opt/go/bin:/absent:relative:/bin:/usr/bin:/root/.cargo/bin"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/usr/local/go/bin", "/bin", "/usr/bin"}, r.Path); diff != "" {
		t.Errorf("path (-want +got):\n%s", diff)
	}
	// opt/go has nothing that /usr/local/go lacks, so one warning remains.
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "/root/.cargo/bin") || !strings.Contains(r.Warnings[0], ": cargo.") {
		t.Errorf("warnings %q", r.Warnings)
	}
}

// TestHostHere builds the image of the machine that runs the test.
func TestHostHere(t *testing.T) {
	needsLinux(t)
	if _, err := os.Stat("/bin/sh"); err != nil {
		t.Skip("needs /bin/sh")
	}
	r, err := RootFS(t.Context(), Options{Path: os.Getenv("PATH")})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range r.Binds {
		for _, secret := range []string{"/etc", "/etc/ssh", "/etc/ssl", "/etc/ssl/private", "/etc/shadow", "/etc/passwd", "/etc/gitconfig", "/root", "/home", "/"} {
			if b.Source == secret {
				t.Errorf("the image binds %s", secret)
			}
		}
	}
}
