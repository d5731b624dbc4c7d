package host

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/images"
)

// machine lays out a host below a directory. Entries that end in / are
// directories, those with -> are links, and the rest are files, executable
// below bin.
func machine(t *testing.T, entries ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, e := range entries {
		name, target, link := strings.Cut(e, " -> ")
		p := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
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
		must(t, err)
	}
	return root
}

// binds returns the binds as path=source below root.
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
	root := machine(t, merged...)
	r, err := RootFS(t.Context(), Options{Root: root})
	must(t, err)
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
	root := machine(t, "usr/bin/env", "usr/lib/", "bin/sh", "lib/libc.so", "sbin/init")
	r, err := RootFS(t.Context(), Options{Root: root})
	must(t, err)
	want := map[string]string{"/usr": "/usr", "/bin": "/bin", "/lib": "/lib", "/sbin": "/sbin"}
	if diff := cmp.Diff(want, binds(r, root)); diff != "" {
		t.Errorf("binds (-want +got):\n%s", diff)
	}
}

func TestHostWithoutShellIsUnsupported(t *testing.T) {
	for _, entries := range [][]string{{"usr/bin/env"}, {"bin/sh"}} {
		if _, err := RootFS(t.Context(), Options{Root: machine(t, entries...)}); !errors.Is(err, images.ErrUnsupported) {
			t.Errorf("%v: %v, want ErrUnsupported", entries, err)
		}
	}
}

func TestHostDigest(t *testing.T) {
	root := machine(t, merged...)
	digest := func(o Options) string {
		o.Root = root
		r, err := RootFS(t.Context(), o)
		must(t, err)
		return r.Digest
	}
	first := digest(Options{})
	if again := digest(Options{}); again != first {
		t.Errorf("two digests of one machine: %s and %s", first, again)
	}
	if other := digest(Options{UID: 1000}); other == first {
		t.Error("another identity has the same digest")
	}
	must(t, os.WriteFile(filepath.Join(root, "usr/lib/os-release"), []byte("VERSION=2"), 0o644))
	if other := digest(Options{}); other == first {
		t.Error("another release has the same digest")
	}
}

func TestHostToolchainsAndMasks(t *testing.T) {
	root := machine(t, merged...)
	r, err := RootFS(t.Context(), Options{
		Root: root, Toolchains: []string{"/opt/go", "/usr/local/go", "/root/.cargo/"}, Mask: []string{"/usr/share", "/usr/absent"},
	})
	must(t, err)
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

var userMachine = append([]string{
	"home/me/.cargo/bin/rustup", "home/me/.cargo/bin/cargo -> rustup", "home/me/.cargo/credentials.toml", "home/me/.rustup/settings.toml",
	"home/me/.pyenv/bin/pyenv", "home/me/.pyenv/libexec/x", "home/me/.nvm/versions/node/v20/bin/node", "home/me/.local/bin/tool", "home/me/.local/lib/x",
	"home/me/.local/bin/uv -> ../share/uv/bin/uv", "home/me/.local/share/uv/bin/uv", "home/me/.local/share/uv/lib/x",
	"opt/jdk/bin/java", "opt/jdk/lib/x", "opt/one/bin/one", "usr/local/bin/hidden -> ../../../opt/one/bin/one", "usr/local/bin/plain", "usr/lib/jvm/bin/javac",
	"usr/local/src/ws/bin/evil", "usr/local/open/bin/evil",
}, merged...)

func TestHostSearchPath(t *testing.T) {
	root := machine(t, userMachine...)
	must(t, os.Chmod(filepath.Join(root, "usr/local/open/bin"), 0o777))
	o := Options{
		Root: root, Toolchains: []string{"/home/me/.cargo/bin"}, Workspace: "/usr/local/src/ws", Environ: []string{"HOME=/home/me"},
		Path: "/home/me/.cargo/bin:/usr/local/src/ws/bin:/usr/local/open/bin:/opt/jdk/bin:/absent:relative:usr/bin:/usr/local/go/bin:/bin:/usr/bin:/home/me/.cargo/bin:",
	}
	search := func(o Options) []string {
		t.Helper()
		r, err := RootFS(t.Context(), o)
		must(t, err)
		return r.Path
	}
	want := []string{"/home/me/.cargo/bin", "/usr/local/go/bin", "/bin", "/usr/bin"}
	if diff := cmp.Diff(want, search(o)); diff != "" {
		t.Errorf("path (-want +got):\n%s", diff)
	}
	// The controls: a skipped directory counts if it is no workspace and not
	// everybody can write it.
	o.Workspace = ""
	must(t, os.Chmod(filepath.Join(root, "usr/local/open/bin"), 0o755))
	want = slices.Insert(want, 1, "/usr/local/src/ws/bin", "/usr/local/open/bin")
	if diff := cmp.Diff(want, search(o)); diff != "" {
		t.Errorf("path of the control (-want +got):\n%s", diff)
	}
	// So does a parent that anybody can change.
	must(t, os.Chmod(filepath.Join(root, "usr/local/open"), 0o777))
	if got := search(o); slices.Contains(got, "/usr/local/open/bin") {
		t.Errorf("path %v has a directory that any user can replace", got)
	}
}

func TestHostVariables(t *testing.T) {
	root := machine(t, userMachine...)
	o := Options{
		Root: root, Toolchains: []string{"/home/me/.rustup", "/opt/jdk", "/home/me/.cargo/bin"},
		Environ: []string{"HOME=/home/me", "JAVA_HOME=/opt/jdk", "GOROOT=/opt/go", "VIRTUAL_ENV=relative", "MAVEN_HOME=/usr/../etc", "DOTNET_ROOT=/usr/lib/"},
	}
	r, err := RootFS(t.Context(), o)
	must(t, err)
	// GOROOT and .pyenv are not in the image, and CARGO_HOME is the commands'
	// own.
	if diff := cmp.Diff([]string{"RUSTUP_HOME=/home/me/.rustup", "JAVA_HOME=/opt/jdk", "DOTNET_ROOT=/usr/lib"}, r.Config.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestFindAbsent(t *testing.T) {
	root := machine(t, userMachine...)
	must(t, os.Chmod(filepath.Join(root, "opt/go/bin"), 0o777))
	o := Options{
		Root: root, Environ: []string{"HOME=/home/me"},
		Path: "/usr/local/bin:/home/me/.cargo/bin:/home/me/.pyenv/bin:/home/me/.nvm/versions/node/v20/bin:/home/me/.local/bin:/opt/jdk/bin:/opt/go/bin:/home/me:/usr/bin",
	}
	must(t, os.Remove(filepath.Join(root, "usr/local/go/bin/go")))
	got, err := FindAbsent(t.Context(), o)
	must(t, err)
	want := []Absent{
		{Dir: "/usr/local/bin", Programs: []string{"hidden"}, Toolchains: []string{"/opt/one/bin"}},
		{Dir: "/home/me/.cargo/bin", Programs: []string{"cargo", "rustup"}, Toolchains: []string{"/home/me/.cargo/bin", "/home/me/.rustup"}},
		{Dir: "/home/me/.pyenv/bin", Programs: []string{"pyenv"}, Toolchains: []string{"/home/me/.pyenv"}},
		{Dir: "/home/me/.nvm/versions/node/v20/bin", Programs: []string{"node"}, Toolchains: []string{"/home/me/.nvm"}},
		{Dir: "/home/me/.local/bin", Programs: []string{"tool", "uv"}, Toolchains: []string{"/home/me/.local/bin", "/home/me/.local/share/uv"}},
		{Dir: "/opt/jdk/bin", Programs: []string{"java"}, Toolchains: []string{"/opt/jdk"}},
		{Dir: "/opt/go/bin", Programs: []string{"go"}, Unsafe: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("absent (-want +got):\n%s", diff)
	}
	places, err := FindPrograms(t.Context(), o, []string{"node", "uv", "sh"})
	if diff := cmp.Diff(map[string]string{"sh": "/usr/bin/sh"}, places); diff != "" || err != nil {
		t.Errorf("programs (-want +got):\n%s%v", diff, err)
	}
	if text := got[1].String(); !strings.Contains(text, "/home/me/.cargo/bin") || !strings.HasSuffix(text, ": cargo, rustup") {
		t.Errorf("warning %q", text)
	}
	for _, a := range got {
		o.Toolchains = append(o.Toolchains, a.Toolchains...)
	}
	if got, err = FindAbsent(t.Context(), o); err != nil || len(got) != 1 || got[0].Dir != "/opt/go/bin" {
		t.Errorf("absent with all toolchains: %v, %v", got, err)
	}
}

func TestHostHere(t *testing.T) {
	if _, err := os.Stat("/bin/sh"); err != nil {
		t.Skip("needs /bin/sh")
	}
	r, err := RootFS(t.Context(), Options{Path: os.Getenv("PATH"), Accounts: []images.Account{{Name: "mcp", UID: 7, GID: 8, Home: "/m"}}})
	must(t, err)
	for _, f := range r.Files {
		want := map[string]string{"/etc/passwd": "\nagent:x:10001:10001:agent:/home/agent:/bin/sh\nmcp:x:7:8:mcp:/m:/bin/sh\nnobody:", "/etc/group": "\nmcp:x:8:\n"}[f.Path]
		if !strings.Contains(string(f.Content), want) {
			t.Errorf("%s lacks an account:\n%s", f.Path, f.Content)
		}
	}
	for _, b := range r.Binds {
		for _, secret := range []string{"/etc", "/etc/ssh", "/etc/ssl", "/etc/ssl/private", "/etc/shadow", "/etc/passwd", "/etc/gitconfig", "/root", "/home", "/"} {
			if b.Source == secret {
				t.Errorf("the image binds %s", secret)
			}
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
