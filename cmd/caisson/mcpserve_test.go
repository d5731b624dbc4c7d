package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/mcpserver"
)

func TestClientsChooseBelowRoots(t *testing.T) {
	top := resolvePath(t.TempDir())
	inside, outside := filepath.Join(top, "src", "a b"), filepath.Join(top, "outside")
	for _, dir := range []string{inside, outside} {
		must(t, os.MkdirAll(dir, 0o755))
	}
	leads := filepath.Join(top, "src", "leads-out")
	must(t, os.Symlink(outside, leads))
	uri := func(path string) string { return "file://" + strings.ReplaceAll(path, " ", "%20") }
	for name, tt := range map[string]struct {
		flags mcpServeFlags
		roots []string
		want  string // the workspace, or a part of the error
	}{
		"no --root":          {flags: mcpServeFlags{Workspace: outside}, roots: []string{uri(inside)}, want: outside},
		"inside":             {roots: []string{uri(inside)}, want: inside},
		"the root itself":    {roots: []string{uri(filepath.Join(top, "src")) + "/"}, want: filepath.Join(top, "src")},
		"the first inside":   {roots: []string{"https://example.com/", uri(outside), uri(inside)}, want: inside},
		"outside":            {roots: []string{uri(outside)}, want: "no root of the client"},
		"by dots":            {roots: []string{uri(inside) + "/../../outside"}, want: "no root of the client"},
		"by a symlink":       {roots: []string{uri(leads)}, want: "no root of the client"},
		"not there":          {roots: []string{uri(inside) + "/none"}, want: "no root of the client"},
		"of another machine": {roots: []string{"file://elsewhere" + inside}, want: "no root of the client"},
		"none":               {want: "names no root"},
		"none, --workspace":  {flags: mcpServeFlags{Workspace: outside, named: true}, want: outside},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "no --root" {
				tt.flags.Roots = []string{filepath.Join(top, "src")}
			}
			h := &mcpHost{flags: tt.flags}
			var err error
			if h.roots, err = openRoots([]string{filepath.Join(top, "src")}); err != nil {
				t.Fatal(err)
			}
			defer h.roots.close()
			got, err := h.chooseWorkspace(mcpserver.Client{Roots: tt.roots})
			if err != nil {
				got = describeToClient(err)
			}
			if got != tt.want && (err == nil || !strings.Contains(got, tt.want)) {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

// TestMCPNamedWorkspace: the workspace that the operator named besides the roots may
// contain a directory of PATH.
func TestMCPNamedWorkspace(t *testing.T) {
	top := withoutLinks(t.TempDir())
	for _, tt := range []struct {
		flags mcpServeFlags
		want  string
	}{
		{mcpServeFlags{Workspace: filepath.Join(top, "a"), named: true}, filepath.Join(top, "a")},
		{mcpServeFlags{Workspace: "a", named: true}, filepath.Join(top, "a")},
		{mcpServeFlags{Workspace: ".", named: false}, ""},
		{mcpServeFlags{Workspace: filepath.Dir(top), named: true}, ""},
	} {
		tt.flags.Roots = []string{top}
		h := &mcpHost{flags: tt.flags}
		if err := h.openRoots(); err != nil || h.named != tt.want {
			t.Errorf("%+v: %q, %v; want %q", tt.flags, h.named, err, tt.want)
		}
		_ = h.roots.close()
	}
}
