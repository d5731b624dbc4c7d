package page

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/report"
)

// maxBatches bounds the list of batches.
const maxBatches = 200

// batches shows the batches in directories, without following symlinks in these. It is
// safe for concurrent use.
type batches struct {
	// dirs are absolute. Each is a batch, or holds batches one level below.
	dirs []string
	// story writes the page of the session whose records are in dir.
	story func(w io.Writer, dir string) error

	mu   sync.Mutex // also keeps two checks of a lock from seeing each other
	rows map[string]batchRow
}

// foundBatch is a batch's directory, with a name that no other has. Stamp changes with
// the batch's results.
type foundBatch struct {
	name, dir, stamp string
	changed          time.Time
}

// batchList is the data of the template "batches", beside a frame.
type batchList struct {
	Rows   []batchRow
	Left   int      // older batches
	Faults []string // directories that can't be read
	None   bool     // no directory is configured
}

// batchRow is one batch of the list.
type batchRow struct {
	stamp string

	Link, Title, Agents                         string
	Planned, Judged, Infrastructure, Suspicious int
	// Best is the model or agent with the highest pass@1, or "".
	Best, Rate string
	Tasks      int // on which it was judged
	Running    bool
	Created    time.Time
	Problem    string // why the batch can't be read, or ""
}

// find returns the batches in order of the directories and names.
func (b *batches) find() (list []foundBatch, faults []string) {
	taken := map[string]bool{}
	for _, dir := range b.dirs {
		root, err := os.OpenRoot(dir)
		if err != nil {
			faults = append(faults, err.Error())
			continue
		}
		add := func(sub string) bool {
			spec, err := root.Lstat(path.Join(sub, batch.SpecFile))
			if err != nil || !spec.Mode().IsRegular() {
				return false
			}
			f := foundBatch{dir: filepath.Join(dir, sub), changed: spec.ModTime(), stamp: fmt.Sprint(spec.ModTime(), spec.Size())}
			if results, err := root.Lstat(path.Join(sub, batch.ResultsFile)); err == nil {
				f.changed, f.stamp = results.ModTime(), f.stamp+fmt.Sprint(results.ModTime(), results.Size())
			}
			base := filepath.Base(f.dir)
			f.name = base
			for i := 2; taken[f.name]; i++ {
				f.name = base + "-" + strconv.Itoa(i)
			}
			taken[f.name] = true
			list = append(list, f)
			return true
		}
		if !add(".") {
			entries, err := fs.ReadDir(root.FS(), ".")
			if err != nil {
				faults = append(faults, err.Error())
			}
			for _, e := range entries {
				if e.IsDir() {
					add(e.Name())
				}
			}
		}
		_ = root.Close() // only read
	}
	return list, faults
}

// list returns the batches, newest first.
func (b *batches) list() batchList {
	found, faults := b.find()
	out := batchList{Faults: faults, None: len(b.dirs) == 0}
	slices.SortStableFunc(found, func(x, y foundBatch) int { return y.changed.Compare(x.changed) })
	if len(found) > maxBatches {
		out.Left, found = len(found)-maxBatches, found[:maxBatches]
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	rows := map[string]batchRow{}
	for _, f := range found {
		row := b.rows[f.dir]
		if row.stamp != f.stamp || row.Problem != "" {
			row = readBatchRow(f)
		}
		row.Link = "/b/" + url.PathEscape(f.name) + "/"
		rows[f.dir] = row
		if row.Problem == "" {
			row.Running, _ = batch.IsRunning(f.dir) // otherwise nothing is known
		}
		out.Rows = append(out.Rows, row)
	}
	b.rows = rows
	return out
}

func readBatchRow(f foundBatch) batchRow {
	row := batchRow{stamp: f.stamp, Title: filepath.Base(f.dir), Created: f.changed}
	spec, err := batch.ReadSpec(f.dir)
	var results []batch.Result
	if err == nil {
		results, err = batch.ReadResults(f.dir)
	}
	if err != nil {
		row.Problem = err.Error()
		return row
	}
	row.Created, row.Agents = spec.Created, strings.Join(spec.Agents, ", ")
	best := -1.0
	for _, a := range batch.Summarize(spec, results).Agents {
		row.Planned += a.Planned
		row.Judged += a.Judged
		row.Infrastructure += a.Infrastructure
		row.Suspicious += a.Suspect
		if rate := a.PassAt1; a.Agent != batch.Nop && a.Agent != batch.Oracle && rate.Value != nil && *rate.Value > best {
			best, row.Best = *rate.Value, a.Agent
			row.Rate = fmt.Sprintf("%.3f", best)
			if rate.Low != nil && rate.High != nil {
				row.Rate += fmt.Sprintf(" (%.2f – %.2f)", *rate.Low, *rate.High)
			}
			row.Tasks = rate.Tasks
		}
	}
	return row
}

// serve shows one batch at /b/{name}/, with everything below it.
func (b *batches) serve(w http.ResponseWriter, r *http.Request) error {
	found, _ := b.find()
	i := slices.IndexFunc(found, func(f foundBatch) bool { return f.name == r.PathValue("name") })
	if i < 0 {
		return notFound("There is no batch with this name in the directories of serve.batches.")
	}
	below := *r
	below.URL = new(*r.URL)
	parts := strings.SplitN(r.URL.EscapedPath(), "/", 4) // "", b, the name, and what is below
	below.URL.RawPath = "/" + parts[len(parts)-1]
	var err error
	if below.URL.Path, err = url.PathUnescape(below.URL.RawPath); err != nil {
		return notFound("The address is not one of this page.")
	}
	o := report.ViewOptions{Dir: found[i].dir, Title: filepath.Base(found[i].dir), Home: "/b", Story: b.story}
	report.NewHandler(o).ServeHTTP(w, &below)
	return nil
}
