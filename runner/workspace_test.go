package runner

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOpenWorkspaceRefuses(t *testing.T) {
	root := t.TempDir()
	p := Protected{
		Home: filepath.Join(root, "home"), State: filepath.Join(root, "home/.local/state/caisson"),
		Config: filepath.Join(root, "etc/caisson"),
	}
	for _, dir := range []string{"home/project", "home/.local/state/caisson/sessions/s", "etc/caisson", "other"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// An earlier session could have left this in its workspace (case 21).
	if err := os.Symlink("/", filepath.Join(root, "home/project/sub")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/":                                    "is the root",
		"home":                                 "is your home directory",
		".":                                    "holds your home directory",
		"home/.local":                          "holds Caisson's state directory",
		"home/.local/state/caisson":            "is Caisson's state directory",
		"home/.local/state/caisson/sessions/s": "lies in Caisson's state directory",
		"etc":                                  "holds Caisson's configuration",
		"missing":                              "missing",
		"file":                                 "is not a directory",
		"home/project/sub":                     "symlink",
		"home/project/sub/etc":                 "symlink",
	} {
		if !filepath.IsAbs(path) {
			path = filepath.Join(root, path)
		}
		w, err := OpenWorkspace(path, p)
		e, ok := errors.AsType[*WorkspaceError](err)
		if !ok || e.Op != "accept" && e.Op != "open" || !strings.Contains(e.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
		if err == nil {
			w.Close()
		}
	}
	for _, path := range []string{"home/project", "other"} {
		w, err := OpenWorkspace(filepath.Join(root, path), p)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		w.Close()
	}
	// Positive control: a comparison of paths as text would accept this.
	if naive := filepath.Join(root, "home/project/sub/etc"); strings.HasPrefix(naive, filepath.Join(root, "home/project")) {
		if info, err := os.Stat(naive); err != nil || !info.IsDir() {
			t.Fatalf("control: %s does not lead out: %v", naive, err)
		}
	}
}

// TestRelativeWorkspace: a relative name is resolved below the process's directory, whose name is free
// of symlinks.
func TestRelativeWorkspace(t *testing.T) {
	root := t.TempDir()
	for _, err := range []error{os.MkdirAll(filepath.Join(root, "real/sub"), 0o755), os.Symlink("real", filepath.Join(root, "link"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Join(root, "link"))
	for name, want := range map[string]string{"sub": "real/sub", ".": "real", filepath.Join(root, "real/./sub/"): "real/sub"} {
		w, err := OpenWorkspace(name, Protected{State: filepath.Join(root, "none")})
		if err != nil {
			t.Fatal(err)
		}
		if w.Path != filepath.Join(root, want) {
			t.Errorf("%s is opened as %s", name, w.Path)
		}
		info, err := w.Dir.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if owner := fileOwner(info); owner != os.Geteuid() {
			t.Errorf("owned by %d", owner)
		}
		if err := w.CheckOwner(false); err != nil {
			t.Errorf("its owner is refused: %v", err)
		}
		if w.Close() != nil || w.Close() == nil {
			t.Error("it is not closed")
		}
		if err := w.refuseProtected(Protected{}); err == nil {
			t.Error("a closed directory is accepted")
		}
		if err := w.CheckOwner(false); err == nil {
			t.Error("the owner of a closed directory is known")
		}
	}
	t.Chdir(filepath.Join(root, "real/sub"))
	if err := os.Remove(filepath.Join(root, "real/sub")); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenWorkspace("x", Protected{}); err == nil || !strings.Contains(err.Error(), "the workspace x can't be resolved") {
		t.Errorf("below a directory that was removed: %v", err)
	}
}

// TestOwnersOfWorkspaces: a user who can't give files to a workspace's owner must accept that.
func TestOwnersOfWorkspaces(t *testing.T) {
	for _, c := range []struct {
		owner, self   int
		accept, fails bool
	}{
		{1000, 1000, false, false},
		{1000, 1001, false, true},
		{1000, 1001, true, false},
		{1000, 0, false, false},
		{0, 1000, false, true},
		{1000, 1, false, true},
	} {
		if got := mayOwn(c.owner, c.self, c.accept); got == c.fails {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

// TestSystemDirectories: a system directory is no workspace unless that is accepted, but people's
// directories below some of them are. A directory that holds Caisson's cache, or lies in it, never
// is.
func TestSystemDirectories(t *testing.T) {
	for path, refused := range map[string]bool{
		"/etc": true, "/run": true, "/home": true, "/usr": true, "/var": true, "/tmp": true, "/usr/share": true, "/usr/src": true, "/var/lib": true,
		t.TempDir(): false,
	} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		for _, accept := range []bool{false, true} {
			w, err := OpenWorkspace(path, Protected{AcceptSystem: accept})
			if err == nil {
				_ = w.Close()
			}
			if got := errors.As(err, new(*SystemDirError)); got != (refused && !accept) {
				t.Errorf("%s, accepted %v: %v", path, accept, err)
			}
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/usr", link); err != nil {
		t.Fatal(err)
	}
	own, err := os.Stat(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/usr":           "is a directory of the system",
		"/usr/none/none": "lies in /usr, a directory of the system",
		link + "/share":  "lies in /usr, a directory of the system",
	} {
		info := own
		if path == "/usr" {
			if info, err = os.Stat(path); err != nil {
				t.Fatal(err)
			}
		}
		if err := refuseSystem(info, path); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	cache := t.TempDir()
	images := filepath.Join(cache, "caisson", "images")
	inside := filepath.Join(images, "sha256", "root")
	if err := os.MkdirAll(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, refused := range map[string]bool{cache: true, filepath.Dir(images): true, images: true, inside: true, t.TempDir(): false} {
		w, err := OpenWorkspace(path, Protected{Cache: images, AcceptSystem: true})
		if err == nil {
			_ = w.Close()
		}
		if (err != nil) != refused {
			t.Errorf("%s: %v", path, err)
		}
	}
}
