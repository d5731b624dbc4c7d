package e2e

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const modulePath = "github.com/caisson-run/caisson"

// ranks are the layers of docs/architecture.md. A package imports lower ranks,
// the packages whose folder it lies in, and nothing else of the module.
var ranks = map[string]int{
	"limits":             0,
	"limits/state":       -1, // for the caches at rank 0 too
	"images":             0,
	"tools/safeurl":      0,
	"tools/egress/ca":    0,
	"tools/egress/cache": 0,
	"tools/egress/rule":  0,
	"tools/workspace":    0,

	"sandbox/guest/archive":   0,
	"sandbox/guest/overlayfs": 0,
	"sandbox/guest/wire":      0,

	"sandbox/programs": 0,

	"images/dockerfile": 0,

	"images/host":  1,
	"images/layer": 1,

	"tools/egress/preset": 1,
	"tools/egress/secret": 1,

	"sandbox":         1,
	"sandbox/guest":   1,
	"sandbox/overlay": 1,
	"tools":           1,

	"sandbox/internal/lifecycle": 2,
	"tools/egress":               2,
	"tools/policy":               2,
	"loop/boundary":              2,

	"images/store":    3,
	"sandbox/docker":  3,
	"sandbox/oci":     3,
	"tools/approval":  3,
	"tools/shell":     3,
	"tools/fetch":     3,
	"tools/file":      3,
	"tools/mcp":       3,
	"tools/mcp/oauth": 2,
	"tools/memory":    3,
	"tools/discovery": 3,
	"tools/skill":     3,
	"tools/verify":    3,

	"tools/dispatch": 4,

	"loop":                    5,
	"loop/internal/modelhttp": 5,
	"loop/anthropic":          6,
	"loop/ollama":             6,
	"loop/openai":             6,
	"loop/replay":             5,
	"loop/tags":               5,
	"loop/usage":              1,
	"loop/worker":             6,

	"runner/closers": 0,
	"runner/prose":   2,
	"runner/redact":  5,
	"runner/record":  6,

	"runner/bridge":            7,
	"runner/bridge/mockmodel":  1,
	"runner/bridge/transcript": 7,

	"runner/caches":     7,
	"runner/changes":    7,
	"runner/ledger":     7,
	"runner/sessiondir": 7,

	"runner": 8,

	"runner/buildnetwork": 9,
	"runner/doctor":       9,
	"runner/trace":        9,

	"runner/telemetry": 9,

	"runner/batch":         10,
	"runner/batch/fleet":   11,
	"runner/batch/report":  11,
	"runner/batch/results": 0,
	"runner/batch/stats":   0,
	"runner/batch/task":    1,

	"runner/mcpserver":                 10,
	"runner/server":                    10,
	"runner/server/internal/outputlog": 0,
	"runner/server/page":               12,

	".": 11,

	"cmd/caisson":       13,
	"cmd/caisson-guest": 13,
}

// unranked are folders whose packages no rank binds, and that nothing in the
// table may import.
var unranked = []string{"sandbox/sandboxtest", "sandbox/internal/worktest", "loop/boundary/boundarytest", "tools/egress/egresstest", "e2e", "examples"}

// concrete are the packages that only the root package, cmd and tests may import.
var concrete = []string{"sandbox/docker", "sandbox/oci", "loop/anthropic", "loop/ollama", "loop/openai", "loop/replay"}

// denials are imports that no rank forbids clearly enough: nothing at or below
// the first may import anything at or below the second.
var denials = []struct{ from, to string }{
	{"sandbox/docker", "sandbox/oci"},
	{"sandbox/oci", "sandbox/docker"},
	{"loop/anthropic", "loop/openai"},
	{"loop/anthropic", "loop/ollama"},
	{"loop/ollama", "loop/anthropic"},
	{"loop/ollama", "loop/openai"},
	{"loop/openai", "loop/anthropic"},
	{"loop/openai", "loop/ollama"},
	{"loop", "sandbox"},
	// Of the tools, only tools/shell and tools/verify know the contract of sandboxes.
	{"tools/policy", "sandbox"},
	{"tools/approval", "sandbox"},
	{"tools/dispatch", "sandbox"},
	{"tools/fetch", "sandbox"},
	{"tools/file", "sandbox"},
	{"tools/mcp", "sandbox"},
	{"tools/memory", "sandbox"},
	{"tools/skill", "sandbox"},
	{"tools/discovery", "sandbox"},
	{"tools/workspace", "sandbox"},
	// What keeps state on the host can't reach a workspace.
	{"tools/memory", "tools/workspace"},
}

// soleImporters are modules that only the listed packages may import.
var soleImporters = map[string][]string{
	"github.com/BurntSushi/toml":             {"runner/batch/task", "cmd/caisson/internal/mcpclients"},
	"github.com/charmbracelet/ultraviolet":   {"cmd/caisson/internal/chat", "runner/trace"},
	"github.com/charmbracelet/x/vt":          {"runner/internal/emulator"},
	"github.com/coder/websocket":             {"runner/server"},
	"github.com/moby/term":                   {"cmd/caisson"},
	"github.com/yuin/goldmark":               {"runner/prose"},
	"github.com/docker/docker":               {"sandbox/docker"},
	"github.com/anthropics/anthropic-sdk-go": {"loop/anthropic"},
	"github.com/openai/openai-go":            {"loop/openai"},
	"github.com/minio/minio-go":              {"runner/batch/results"},
	"github.com/nats-io":                     {"runner/batch/fleet"},
	"go.opentelemetry.io":                    {"runner/telemetry"},

	"github.com/modelcontextprotocol/go-sdk": {"tools/mcp", "runner/mcpserver"},
}

// edge is one import of a file that is no test.
type edge struct{ from, to string }

func TestLayers(t *testing.T) {
	edges := importsOf(t, "..")
	internal := 0
	for _, e := range edges {
		if _, ok := inModule(e.to); ok {
			internal++
		}
	}
	if internal == 0 {
		t.Fatal("no import of the module's own packages was read: the test sees nothing")
	}
	for _, violation := range violations(edges) {
		t.Error(violation)
	}
}

// TestLayersCatches drives edges that must not be through the check: a check
// that finds none of them proves nothing.
func TestLayersCatches(t *testing.T) {
	for _, test := range []struct {
		from, to string
		want     string
	}{
		{"sandbox", "limits", ""},
		{"tools/memory", "tools", ""},
		{"tools/memory", "tools/workspace", "tools/memory must not import tools/workspace"},
		{"sandbox/oci", "sandbox", ""},
		{"loop/openai", "loop", ""},
		{"cmd/caisson", "sandbox/docker", ""},
		{"sandbox/docker", "sandbox/internal/ownership", ""},
		{"sandbox/docker", "sandbox/internal/lifecycle", ""},
		{"sandbox/docker", "sandbox/docker/internal/api", ""},
		{"sandbox/internal/workmount", "sandbox/internal/ownership", ""},
		{"sandbox/internal/ownership", "sandbox", ""},
		{"cmd/caisson", "cmd/caisson/internal/flags", ""},
		{"limits", "sandbox", "limits (rank 0) imports sandbox (rank 1)"},
		{"tools", "tools/file", "tools (rank 1) imports tools/file (rank 3)"},
		{"tools/file", "tools/shell", "tools/file (rank 3) imports tools/shell (rank 3)"},
		{"sandbox/docker", "sandbox/oci", "sandbox/docker must not import sandbox/oci"},
		{"sandbox/oci/internal/spec", "sandbox/docker", "sandbox/oci must not import sandbox/docker"},
		{"loop", "sandbox", "loop must not import sandbox"},
		{"loop/replay", "sandbox/guest/wire", "loop must not import sandbox"},
		{"tools/shell", "sandbox", ""},
		{"tools", "sandbox", "tools (rank 1) imports sandbox (rank 1)"},
		{"tools/file", "sandbox", "tools/file must not import sandbox"},
		{"runner", "sandbox/docker", "only the root package, cmd and tests import sandbox/docker"},
		{"runner", "loop/openai", "only the root package, cmd and tests import loop/openai"},
		{"runner", "sandbox/sandboxtest", "sandbox/sandboxtest is for tests"},
		{"novelty", "limits", "novelty has no rank"},
		{"runner", "novelty", "novelty has no rank"},
		{"runner", "github.com/docker/docker/client", "only sandbox/docker imports github.com/docker/docker"},
		{"loop/replay", "github.com/openai/openai-go/v3", "only loop/openai imports github.com/openai/openai-go"},
		{"runner", "github.com/modelcontextprotocol/go-sdk/mcp", "only tools/mcp and runner/mcpserver imports github.com/modelcontextprotocol/go-sdk"},
		{"tools/mcp", "github.com/modelcontextprotocol/go-sdk/mcp", ""},
		{"sandbox/guest/wire", "golang.org/x/sys/unix", "sandbox/guest/wire imports golang.org/x/sys/unix: standard library only"},
	} {
		t.Run(test.from+" to "+test.to, func(t *testing.T) {
			to := test.to
			if !strings.Contains(to, ".") {
				to = modulePath + "/" + to
			}
			got := strings.Join(violations([]edge{{test.from, to}}), "\n")
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("violations = %q, want %q", got, test.want)
			}
		})
	}
}

// TestGuestLinksLittle bounds what the program that is PID 1 in every
// container is made of: the standard library, golang.org/x/sys, the protocol
// and the workspace API.
func TestGuestLinksLittle(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f",
		"{{if not .Standard}}{{.ImportPath}}{{end}}", modulePath+"/cmd/caisson-guest").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var got []string
	for pkg := range strings.FieldsSeq(string(out)) {
		switch name, own := inModule(pkg); {
		case !own && !strings.HasPrefix(pkg, "golang.org/x/sys/"):
			t.Errorf("the guest links %s", pkg)
		case own && !below(name, "cmd/caisson-guest"):
			got = append(got, name)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"sandbox/guest/archive", "sandbox/guest/overlayfs", "sandbox/guest/wire", "tools/workspace"}, got); diff != "" {
		t.Errorf("packages of the module in the guest (-want +got):\n%s", diff)
	}
}

// importsOf reads the imports of every Go file below root that is no test, for
// every operating system, and gives packages relative to the module.
func importsOf(t *testing.T, root string) []edge {
	t.Helper()
	var edges []edge
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name != root && skippedFolder(name, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			to, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			edges = append(edges, edge{filepath.ToSlash(folder), to})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return edges
}

// skippedFolder says that go build ./... does not look into a folder: hidden,
// test data, or a module of its own.
func skippedFolder(name, base string) bool {
	if strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || base == "node_modules" {
		return true
	}
	nested, _ := filepath.Glob(filepath.Join(name, "go.mod"))
	return len(nested) > 0
}

// violations gives a line for each edge that breaks a rule, once each.
func violations(edges []edge) []string {
	var found []string
	for _, e := range edges {
		if slices.ContainsFunc(unranked, func(o string) bool { return below(e.from, o) }) {
			continue
		}
		found = append(found, violation(e)...)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func violation(e edge) []string {
	var found []string
	report := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	from, ok := rankOf(e.from)
	if !ok {
		report("%s has no rank: give it one in the table", e.from)
	}
	to, own := inModule(e.to)
	if !own {
		if e.from == "sandbox/guest/wire" && strings.Contains(strings.Split(e.to, "/")[0], ".") {
			report("%s imports %s: standard library only, both ends link it", e.from, e.to)
		}
		for module, importers := range soleImporters {
			if below(e.to, module) && !slices.ContainsFunc(importers, func(o string) bool { return below(e.from, o) }) {
				report("%s imports %s: only %s imports %s", e.from, e.to, strings.Join(importers, " and "), module)
			}
		}
		return found
	}
	for _, d := range denials {
		if below(e.from, d.from) && below(to, d.to) {
			report("%s must not import %s: %s imports %s", d.from, d.to, e.from, to)
		}
	}
	for _, c := range concrete {
		if below(to, c) && !below(e.from, c) && !below(e.from, "cmd") && e.from != "." {
			report("only the root package, cmd and tests import %s: %s does", c, e.from)
		}
	}
	if slices.ContainsFunc(unranked, func(o string) bool { return below(to, o) }) {
		report("%s is for tests: %s imports it", to, e.from)
		return found
	}
	rank, ok := rankOf(to)
	switch {
	case !ok:
		report("%s has no rank: give it one in the table", to)
	case !mayImport(e.from, from, to, rank):
		report("%s (rank %d) imports %s (rank %d)", e.from, from, to, rank)
	}
	return found
}

// mayImport is the rule of ranks: lower ones, and the folders that a package
// lies in. Internal packages belong to the package above them.
func mayImport(from string, fromRank int, to string, toRank int) bool {
	if owner, ok := internalOwner(to); ok && below(from, owner) {
		own, isInternal := internalOwner(from)
		return from == owner || isInternal && own == owner || toRank < fromRank
	}
	return toRank < fromRank || from != to && below(from, to)
}

// rankOf returns the rank of a package. An internal one has its owner's, unless
// the table has it.
func rankOf(pkg string) (int, bool) {
	if rank, ok := ranks[pkg]; ok {
		return rank, true
	}
	if owner, ok := internalOwner(pkg); ok {
		pkg = owner
	}
	rank, ok := ranks[pkg]
	return rank, ok
}

// internalOwner gives the package X of X/internal/….
func internalOwner(pkg string) (string, bool) {
	owner, _, ok := strings.Cut(pkg, "/internal/")
	return owner, ok
}

// inModule returns an import path relative to the module; the root package is ".".
func inModule(importPath string) (string, bool) {
	if importPath == modulePath {
		return ".", true
	}
	return strings.CutPrefix(importPath, modulePath+"/")
}

// below says that pkg is folder or lies in it.
func below(pkg, folder string) bool {
	return pkg == folder || strings.HasPrefix(path.Clean(pkg), folder+"/")
}
