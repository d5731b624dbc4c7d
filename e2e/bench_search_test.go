package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/file"
	"github.com/caisson-run/caisson/tools/workspace"
)

// What the benchmark searches: 100 × 20 directories of 50 Go files of 400 bytes.
const (
	searchTops  = 100
	searchDirs  = 20
	searchFiles = 50
	// searchedName is in one of the files.
	searchedName = "findTheNeedle"
)

// makeSearchTree fills dir with 100,000 files, 40 MB.
func makeSearchTree(b testing.TB, dir string) {
	b.Helper()
	padding := strings.Repeat("// A line of text in which nothing is looked for.\n", 6)
	for i := range searchTops * searchDirs * searchFiles {
		name := filepath.Join(dir, fmt.Sprintf("d%02d/s%02d/f%02d.go", i/searchFiles/searchDirs, i/searchFiles%searchDirs, i%searchFiles))
		if i%searchFiles == 0 {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				b.Fatal(err)
			}
		}
		function := fmt.Sprintf("f%d", i)
		if i == 77_777 {
			function = searchedName
		}
		text := fmt.Sprintf("package p\n\n// It returns the %d-fold.\nfunc %s(n int) int {\n\treturn n * %d\n}\n\n%s", i, function, i, padding)
		writeFile(b, name, text, 0o644)
	}
}

// BenchmarkSearch is the tools that search, on the workspace itself and on an
// overlay of it, beside ripgrep and fd with as many threads on the same files.
func BenchmarkSearch(b *testing.B) {
	bench := benchSandbox(b, "runc")
	makeSearchTree(b, bench.dir.Name())
	reader, err := workspace.NewReader(bench.dir, workspace.ReaderOptions{HostPath: bench.dir.Name()})
	if err != nil {
		b.Fatal(err)
	}
	box := bench.startOverlay(b)
	if err := runIn(b.Context(), box, nil, "sh", "-c", "for d in /workspace/d50/*; do echo >>$d/f00.go; done"); err != nil {
		b.Fatal(err)
	}
	overlay := box.View()
	threads := strconv.Itoa(runtime.GOMAXPROCS(0))
	dir := bench.dir.Name()
	grep, glob := map[string]any{"pattern": searchedName}, map[string]any{"pattern": "**/f49.go"}
	b.Run("grep", func(b *testing.B) {
		compare(b, append(peer(b, "rg", "rg", "--threads", threads, searchedName, dir),
			side{op: searchWith(b, reader, "grep", grep, 1)},
			side{name: "overlay-", op: searchWith(b, overlay, "grep", grep, 1)})...)
	})
	b.Run("glob", func(b *testing.B) {
		compare(b, append(peer(b, "fd", "fdfind", "--threads", threads, "--glob", "--full-path", "**/f49.go", dir),
			side{op: searchWith(b, reader, "glob", glob, 1000)},
			side{name: "overlay-", op: searchWith(b, overlay, "glob", glob, 1000)})...)
	})
}

// peer is a program that searches; none where it isn't installed.
func peer(b *testing.B, name string, argv ...string) []side {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		b.Logf("%s is not measured: %v", name, err)
		return nil
	}
	return []side{{name: name + "-", op: func() error {
		out, err := exec.CommandContext(b.Context(), path, argv[1:]...).Output()
		if len(out) == 0 && err == nil {
			err = fmt.Errorf("%s found nothing", name)
		}
		return err
	}}}
}

// searchWith returns a call of a tool that must find that many lines.
func searchWith(b *testing.B, view workspace.View, name tools.Name, input map[string]any, want int) func() error {
	b.Helper()
	factories, err := file.Factories(file.Options{Reader: view})
	if err != nil {
		b.Fatal(err)
	}
	raw, err := json.Marshal(input)
	if err != nil {
		b.Fatal(err)
	}
	for _, factory := range factories {
		if factory().Definition().Name != name {
			continue
		}
		return func() error {
			out, err := factory().Execute(b.Context(), &tools.Call{Name: name, Input: raw})
			if err != nil {
				return err
			}
			if got := strings.Count(out.Content[0].Text, ".go"); got != want {
				return fmt.Errorf("%s found %d, not %d: %.200s", name, got, want, out.Content[0].Text)
			}
			return nil
		}
	}
	b.Fatalf("no tool %s", name)
	return nil
}

// startOverlay is start with a copy-on-write view of the workspace.
func (s *bench) startOverlay(b *testing.B) sandbox.Sandbox {
	b.Helper()
	layers := filepath.Join(s.state, "layers")
	for _, dir := range []string{layers, filepath.Join(layers, "upper"), filepath.Join(layers, "work")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			b.Fatal(err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(s.dir.Fd()), &st); err != nil {
		b.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(layers, "upper"), os.FileMode(st.Mode&0o777)); err != nil {
		b.Fatal(err)
	}
	return s.startSpec(b, func(spec *sandbox.Spec) {
		spec.Workspace.Mode, spec.Workspace.Layers = sandbox.ModeOverlay, layers
	})
}
