package report

import (
	_ "embed" // the page's template
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/record"
)

// The bounds of a trial's page.
const (
	maxText   = 256 << 10 // bytes of a text
	maxTexts  = 20        // files whose text is shown
	maxParts  = 200       // steps, failed tries and sessions
	maxFiles  = 1_000     // files in the list
	maxOthers = 200       // the task's other trials in the list
)

//go:embed trial.html.tmpl
var trialText string

type trialPage struct {
	head

	trialRow
	Rewards                             []namedReward
	Sessions                            []string // directories with records
	Texts                               []shownText
	Files                               []listedFile
	Others                              []trialRow // of the same task
	StepsLeft, FaultsLeft, SessionsLeft int
	TextsLeft, FilesLeft, OthersLeft    int
}

type namedReward struct {
	Name  string
	Value float64
}

type shownText struct {
	Name, Text string
	// Left is the number of bytes left out: at the beginning of output, or at the end
	// of a patch.
	Left int64
}

type listedFile struct {
	Name string
	Size int64
}

// shownFiles are the files to show, as patterns of [fs.Glob].
var shownFiles = []string{
	batch.PatchFile,
	batch.AgentOutputFile, batch.StepsDir + "/*/" + batch.AgentOutputFile,
	batch.VerifierDir + "/" + batch.OutputFile, batch.StepsDir + "/*/" + batch.VerifierDir + "/" + batch.OutputFile,
}

func (o ViewOptions) readTrialPage(results []batch.Result, i int) (*trialPage, error) {
	r := results[i]
	root, err := openTrial(o.Dir, r.Key.Name())
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // only read
	p := &trialPage{head: o.newHead(fmt.Sprintf("%s, %s, attempt %d", r.Task, r.Agent, r.Attempt), ""), trialRow: newTrialRow(r, 0)}
	p.Steps, p.StepsLeft = cut(p.Steps, maxParts)
	p.Faults, p.FaultsLeft = cut(p.Faults, maxParts)
	p.Sessions, p.SessionsLeft = cut(findSessions(root), maxParts)
	for name, value := range r.Rewards {
		p.Rewards = append(p.Rewards, namedReward{name, value})
	}
	slices.SortFunc(p.Rewards, func(a, b namedReward) int { return strings.Compare(a.Name, b.Name) })
	for _, pattern := range shownFiles {
		names, _ := fs.Glob(root.FS(), pattern) // the patterns are ours
		for _, name := range names {
			if len(p.Texts) == maxTexts {
				p.TextsLeft++
			} else if text, ok := readText(root, name); ok {
				p.Texts = append(p.Texts, text)
			}
		}
	}
	if p.Files, p.FilesLeft, err = listFiles(root); err != nil {
		return nil, err
	}
	for _, other := range results {
		if other.Task == r.Task && other.Key != r.Key {
			p.Others = append(p.Others, newTrialRow(other, 0))
		}
	}
	p.Others, p.OthersLeft = cut(p.Others, maxOthers)
	return p, nil
}

// findSessions returns a trial's directories with session records.
func findSessions(root *os.Root) []string {
	var dirs []string
	for _, pattern := range []string{batch.SessionDir, batch.VerifierSessionDir, batch.StepsDir + "/*/" + batch.VerifierSessionDir, batch.ControlDir + "/" + batch.VerifierSessionDir, batch.StepsDir + "/*/" + batch.ControlDir + "/" + batch.VerifierSessionDir} {
		for _, name := range []string{record.TraceFile, record.AuditFile} {
			found, _ := fs.Glob(root.FS(), pattern+"/"+name) // the patterns are ours
			for _, f := range found {
				if dir := path.Dir(f); !slices.Contains(dirs, dir) {
					dirs = append(dirs, dir)
				}
			}
		}
	}
	return dirs
}

func readText(root *os.Root, name string) (shownText, bool) {
	f, err := openFile(root, name)
	if err != nil {
		return shownText{}, false
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return shownText{}, false
	}
	left := max(0, info.Size()-maxText)
	from := left // an output's result is at its end
	if path.Base(name) == batch.PatchFile {
		from = 0
	}
	text, err := io.ReadAll(io.NewSectionReader(f, from, maxText))
	return shownText{name, string(text), left}, err == nil
}

// listFiles returns a trial's regular files, up to maxFiles, and how many are left: the
// others, and directories that can't be read, such as those with names that aren't UTF-8.
func listFiles(root *os.Root) (list []listedFile, left int, err error) {
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && name == ".":
			return err
		case err != nil:
			left++
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err != nil || len(list) == maxFiles {
			left++
			return nil
		}
		list = append(list, listedFile{name, info.Size()})
		return nil
	})
	return list, left, err
}
