package file

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is the tools over a real directory. A real Writer stands in for the
// sandbox.
type fixture struct {
	t       testing.TB
	root    string
	outside string
	canary  string
	reader  *workspace.Reader
	tools   map[tools.Name]tools.Factory
	all     []tools.Factory
	sandbox *sandbox
}

// sandbox applies changes like the real one, and remembers them.
type sandbox struct {
	writer *workspace.Writer
	ops    []workspace.Op
	err    error
}

func (s *sandbox) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	s.ops = append(s.ops, op)
	if s.err != nil {
		return workspace.Change{}, s.err
	}
	return s.writer.Apply(ctx, op)
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	base := t.TempDir()
	var secret [32]byte
	_, _ = rand.Read(secret[:])
	f := &fixture{t: t, root: filepath.Join(base, "ws"), outside: filepath.Join(base, "outside"), canary: hex.EncodeToString(secret[:])}
	f.must(os.Mkdir(f.root, 0o755))
	f.must(os.Mkdir(f.outside, 0o755))
	f.must(os.WriteFile(filepath.Join(f.outside, "canary"), []byte(f.canary), 0o644))
	dir, err := workspace.OpenDir(f.root)
	f.must(err)
	t.Cleanup(func() { _ = dir.Close() })
	f.reader, err = workspace.NewReader(dir, workspace.ReaderOptions{HostPath: f.root, ContainerPath: "/workspace"})
	f.must(err)
	f.sandbox = &sandbox{writer: workspace.NewWriter(dir, workspace.WriterOptions{HostPath: f.root, ContainerPath: "/workspace"})}
	f.all, err = Factories(Options{Reader: f.reader, Applier: f.sandbox})
	f.must(err)
	f.tools = map[tools.Name]tools.Factory{}
	for _, factory := range f.all {
		f.tools[factory().Definition().Name] = factory
	}
	return f
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) file(name, content string) {
	f.t.Helper()
	p := filepath.Join(f.root, name)
	f.must(os.MkdirAll(filepath.Dir(p), 0o755))
	f.must(os.WriteFile(p, []byte(content), 0o644))
}

func (f *fixture) content(name string) string {
	b, err := os.ReadFile(filepath.Join(f.root, name))
	if err != nil {
		return "error: " + err.Error()
	}
	return string(b)
}

// call runs one tool, and fails the test if its output has the canary.
func (f *fixture) call(name tools.Name, input any) (tools.Output, error) {
	f.t.Helper()
	raw, err := json.Marshal(input)
	f.must(err)
	if s, ok := input.(string); ok {
		raw = []byte(s)
	}
	out, err := f.tools[name]().Execute(context.Background(), &tools.Call{Name: name, Input: raw})
	for _, b := range out.Content {
		if strings.Contains(b.Text, f.canary) || strings.Contains(string(b.Image), f.canary) {
			f.t.Errorf("%s gave the canary", name)
		}
	}
	if err != nil && strings.Contains(err.Error(), f.canary) {
		f.t.Errorf("the error of %s gave the canary", name)
	}
	return out, err
}

// text calls a tool that must succeed.
func (f *fixture) text(name tools.Name, input any) string {
	f.t.Helper()
	out, err := f.call(name, input)
	if err != nil {
		f.t.Fatalf("%s %v: %v", name, input, err)
	}
	return out.Content[0].Text
}

// refused returns class, reason and message of a failure that the model sees.
func (f *fixture) refused(err error) (tools.ErrorClass, string, string) {
	f.t.Helper()
	e, ok := errors.AsType[*tools.Error](err)
	if !ok || !e.Visible {
		f.t.Fatalf("error %v (%T) is not for the model", err, err)
	}
	return e.Class, e.Reason, e.Message
}

type object = map[string]any
