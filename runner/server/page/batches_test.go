package page

import (
	"bytes"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/tools"
)

// makeBatch makes a batch of one agent with one trial and a file of it, and returns it
// open.
func makeBatch(t *testing.T, dir, agent string) (*batch.Ledger, string) {
	t.Helper()
	l, err := batch.OpenLedger(dir, batch.Spec{Agents: []string{agent, batch.Oracle}, Attempts: 1, Tasks: []batch.SpecTask{{ID: agent, Checksum: "c"}}})
	if err != nil {
		t.Fatal(err)
	}
	k := batch.Key{Task: agent, Agent: agent, Attempt: 1}
	running, err := l.Begin(k)
	if err == nil {
		err = os.Mkdir(filepath.Join(running, batch.SessionDir), 0o700)
	}
	for name, text := range map[string]string{"file.html": "<script>", "50 %2f?": "odd", batch.SessionDir + "/" + record.TraceFile: "{}\n"} {
		if err == nil {
			err = os.WriteFile(filepath.Join(running, name), []byte(text), 0o600)
		}
	}
	if err == nil {
		now := time.Now()
		err = l.Finish(batch.Result{Key: k, Model: agent, Outcome: batch.Passed, Reward: new(1.0), Started: now, Finished: now})
	}
	if err != nil {
		t.Fatal(err)
	}
	return l, k.Name()
}

func makeBatches(t *testing.T, agent string, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		l, _ := makeBatch(t, dir, agent)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// renderBatches writes the list with a frame of the test's own.
func renderBatches(t *testing.T, list batchList) string {
	t.Helper()
	show := func(v any) string {
		safe, _ := tools.Display(fmt.Sprint(v))
		return safe
	}
	word := func(any) string { return "when" }
	text, err := os.ReadFile("templates/batches.html.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	page, err := template.New("").Funcs(template.FuncMap{
		"line": show, "clip": func(s string, n int) string { return s[:min(n, len(s))] }, "machine": word, "date": word, "since": word,
	}).Parse(`{{define "top"}}<main>{{end}}{{define "bottom"}}</main>{{end}}` + string(text))
	var out bytes.Buffer
	if err == nil {
		err = page.ExecuteTemplate(&out, "batches", list)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func (b *batches) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /b/{name}/{rest...}", func(w http.ResponseWriter, r *http.Request) {
		if p, ok := errors.AsType[*server.Problem](b.serve(w, r)); ok {
			http.Error(w, p.Detail, p.Status)
		}
	})
	return mux
}

// TestBatches: batches in the directories are listed newest first, each under a name of
// its own that leads to its pages.
func TestBatches(t *testing.T) {
	top := t.TempDir()
	one, two := filepath.Join(top, "one"), filepath.Join(top, "two")
	odd := `a "b" %2f ?c#d <i>` + "\u202e\x1b\xff"
	makeBatches(t, "gpt", filepath.Join(one, "same"), filepath.Join(one, "deep", "er"), filepath.Join(two, "same"), filepath.Join(two, odd), filepath.Join(top, "itself"), filepath.Join(top, "itself", "inner"))
	live, trial := makeBatch(t, filepath.Join(one, "live"), "gpt")
	damaged := filepath.Join(one, "damaged")
	err := os.MkdirAll(damaged, 0o700)
	for name, age := range map[string]time.Duration{filepath.Join(one, "live", batch.ResultsFile): -time.Hour, filepath.Join(two, "same", batch.ResultsFile): time.Hour} {
		if err == nil {
			err = os.Chtimes(name, time.Time{}, time.Now().Add(-age))
		}
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(damaged, batch.SpecFile), []byte("{"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	b := &batches{dirs: []string{one, two, filepath.Join(top, "itself"), filepath.Join(top, "none")}, story: func(w io.Writer, dir string) error {
		_, err := fmt.Fprint(w, "the story in ", filepath.Base(dir))
		return err
	}}
	list := b.list()
	rows := map[string]batchRow{}
	for _, row := range list.Rows {
		rows[row.Link] = row
	}
	if len(rows) != 6 || len(list.Faults) != 1 || list.Rows[0].Title != "live" || list.Rows[5].Link != "/b/same-2/" {
		t.Fatalf("%+v", list)
	}
	for _, row := range list.Rows {
		want := batchRow{Planned: 2, Judged: 1, Best: "gpt", Rate: "1.000 (0.21 – 1.00)", Tasks: 1, Agents: "gpt, oracle", Running: row.Title == "live"}
		if row.Title == "damaged" {
			want = batchRow{Problem: row.Problem}
		}
		got := row
		got.Link, got.Title, got.Created, got.stamp = "", "", time.Time{}, ""
		if got != want || (row.Problem == "") == (row.Title == "damaged") {
			t.Errorf("%s: %+v, want %+v", row.Title, row, want)
		}
	}
	handler := b.handler()
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w
	}
	base := "/b/live/" + batch.TrialsDir + "/" + trial + "/"
	for path, want := range map[string]string{
		base: "attempt 1", base + "file.html": "<script>", base + "50%20%252f%3F": "odd", base + batch.SessionDir + "/": "the story in " + batch.SessionDir, "/b/live/compare?a=gpt&b=oracle": "no task in common",
	} {
		if w := get(path); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) || !strings.HasPrefix(w.Header().Get("Content-Security-Policy"), "default-src 'none'; ") {
			t.Errorf("%s: status %d, %v: %s", path, w.Code, w.Header(), w.Body)
		}
	}
	page := renderBatches(t, list)
	links := regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(page, -1)
	if len(links) != 6 {
		t.Errorf("%d links", len(links))
	}
	for _, link := range links { // as they are on the page
		want, title := http.StatusOK, "All trials"
		if strings.Contains(link[1], "damaged") {
			want, title = http.StatusInternalServerError, "is damaged"
		}
		if w := get(link[1]); w.Code != want || !strings.Contains(w.Body.String(), title) {
			t.Errorf("%s: status %d: %s", link[1], w.Code, w.Body)
		}
	}
	for _, hostile := range []string{"<i>", "\u202e", "\x1b", "ZgotmplZ"} {
		if strings.Contains(page, hostile) {
			t.Errorf("the list has %q", hostile)
		}
	}
	if !strings.Contains(page, "&lt;i&gt;") { // the control
		t.Error("the list lacks the odd name")
	}
	for _, path := range []string{"/b/none/", "/b/inner/", "/b/er/", "/b/one/", "/b/%2e%2e/", "/b/..%2fone/", "/b/live/..%2fsame/", "/b/live/" + batch.SpecFile, "/b/live/%2e%2e/same/", "/b/live//"} {
		if w := get(path); w.Code == http.StatusOK || strings.Contains(w.Body.String(), "schema_version") {
			t.Errorf("%s: status %d: %s", path, w.Code, w.Body)
		}
	}
	if err := live.Close(); err != nil {
		t.Fatal(err)
	}
	if row := b.list().Rows[0]; row.Title != "live" || row.Running {
		t.Errorf("after its end: %+v", row)
	}
	l, err := batch.OpenLedger(filepath.Join(one, "live"), batch.Spec{Agents: []string{"gpt"}, Attempts: 2, Tasks: []batch.SpecTask{{ID: "gpt", Checksum: "c"}, {ID: "x"}}})
	if err != nil {
		t.Fatal(err)
	}
	if rows := b.list().Rows; !slices.ContainsFunc(rows, func(r batchRow) bool { return r.Title == "live" && r.Planned == 4 && r.Running }) {
		t.Errorf("when it goes on: %+v", rows)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestBatchesFollowNoLinks: what a symlink or a special file leads to is no batch here.
func TestBatchesFollowNoLinks(t *testing.T) {
	top, outside := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	makeBatches(t, "gpt", outside, filepath.Join(top, "control"))
	err := errors.Join(os.Symlink(outside, filepath.Join(top, "link")), os.Symlink("control", filepath.Join(top, "inside")))
	for name, to := range map[string]string{"spec": batch.SpecFile, "up": "../control/" + batch.SpecFile} {
		if err == nil {
			err = os.Mkdir(filepath.Join(top, name), 0o700)
		}
		if target := filepath.Join(outside, to); err == nil {
			err = os.Symlink(target, filepath.Join(top, name, batch.SpecFile))
		}
	}
	makeBatches(t, "gpt", filepath.Join(top, "planted"))
	if err == nil {
		err = os.Remove(filepath.Join(top, "planted", batch.ResultsFile))
	}
	if err == nil {
		err = os.Symlink(filepath.Join(outside, batch.ResultsFile), filepath.Join(top, "planted", batch.ResultsFile))
	}
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(top, "link", batch.SpecFile)); err != nil || !info.Mode().IsRegular() {
		t.Fatalf("the symlink leads nowhere: %v", err)
	}
	b := &batches{dirs: []string{top}}
	list := b.list()
	if len(list.Rows) != 2 || len(list.Faults) != 0 {
		t.Fatalf("%+v", list)
	}
	for _, row := range list.Rows {
		if (row.Title == "control") != (row.Problem == "") || row.Problem != "" && !strings.Contains(row.Problem, "symlink") {
			t.Errorf("%+v", row)
		}
	}
	for path, want := range map[string]int{"/b/control/": 200, "/b/link/": 404, "/b/inside/": 404, "/b/spec/": 404, "/b/up/": 404, "/b/planted/": 500, "/b/planted/compare?a=gpt&b=oracle": 500} {
		w := httptest.NewRecorder()
		b.handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("%s: status %d, want %d", path, w.Code, want)
		}
	}
}

// TestBatchesAreBounded: the newest are listed, and the others counted.
func TestBatchesAreBounded(t *testing.T) {
	top := t.TempDir()
	for i := range maxBatches + 3 {
		spec := filepath.Join(top, fmt.Sprint(i), batch.SpecFile)
		err := os.Mkdir(filepath.Dir(spec), 0o700)
		if err == nil {
			err = os.WriteFile(spec, []byte(`{"schema_version":1}`), 0o600)
		}
		if err == nil {
			err = os.Chtimes(spec, time.Time{}, time.Unix(int64(1_800_000_000-i), 0))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	list := (&batches{dirs: []string{top}}).list()
	if len(list.Rows) != maxBatches || list.Left != 3 || list.Rows[0].Title != "0" || list.Rows[maxBatches-1].Title != fmt.Sprint(maxBatches-1) {
		t.Errorf("%d rows, %d left", len(list.Rows), list.Left)
	}
	if page := renderBatches(t, list); !strings.Contains(page, "3 older ones are not listed") {
		t.Error("the page doesn't count them")
	}
	if page := renderBatches(t, (&batches{}).list()); !strings.Contains(page, "--batches DIR") {
		t.Errorf("without directories: %s", page)
	}
}
