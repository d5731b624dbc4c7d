// Package report writes report.html: a batch's results as one page that runs no scripts
// and loads nothing.
//
// All figures come from package batch. Texts of tasks, models and sandboxes are
// escaped, and invisible characters are written out.
package report

import (
	"bufio"
	"crypto/sha256"
	_ "embed" // the page's template and style
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/tools"
)

// File is the page's name in the batch's directory. Its links to trials are relative to
// that.
const File = "report.html"

// A page's bounds. The page counts what they leave out.
const (
	maxTrials      = 10_000 // rows of trials
	maxFaults      = 100    // rows of infrastructure faults
	maxAgents      = 6      // agents that are compared with each other
	maxTasks       = 1_000  // rows of tasks
	maxOpen        = 10     // tasks on which two agents differ that are shown unfolded
	maxPairs       = 200    // tasks on which agents differ, and tasks left out, per comparison
	maxUnsupported = 1_000  // rows of unsupported tasks
	maxPoints      = 15     // agents in the plot of costs; their labels must have room
)

//go:embed page.html.tmpl
var pageText string

//go:embed page.css
var pageStyle string

//go:embed parts.html.tmpl
var partsText string

// head is what all pages begin with.
type head struct {
	Title string
	Style template.CSS
	// Policy forbids everything except Style, and on a served page forms to the server.
	Policy string
	// Home is the address of a page with all batches, or "".
	Home string
}

func newHead(title, rules, forms string) head {
	text := pageStyle + rules
	sum := sha256.Sum256([]byte(text))
	return head{
		Title: title, Style: template.CSS(text), //nolint:gosec // a file of ours, and numbers
		Policy: "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action " + forms,
	}
}

var pageTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page").Funcs(template.FuncMap{
		"line": showLine,
		"lines": func(text string) string {
			safe, _ := tools.DisplayLines(strings.ToValidUTF8(text, "\ufffd"))
			return safe
		},
		"clip": func(text string, n int) string {
			if r := []rune(text); len(r) > n {
				return string(r[:n-1]) + "…"
			}
			return text
		},
		"href":    func(name string) string { return (&url.URL{Path: "./" + name}).EscapedPath() },
		"count":   limits.FormatCount,
		"date":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") },
		"machine": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	}).Parse(pageText + trialText + partsText))
})

// showLine makes every character of a text visible.
func showLine(v any) string {
	safe, _ := tools.Display(fmt.Sprint(v))
	return safe
}

// Write writes a batch's page with the given title.
func Write(w io.Writer, title string, s batch.Spec, results []batch.Result) error {
	p := newPage(s, results)
	p.head = newHead(title, filterRules(len(p.Agents)), "'none'")
	out := bufio.NewWriterSize(w, 64<<10)
	if err := pageTemplate().Execute(out, p); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return out.Flush()
}

var outcomes = []batch.Outcome{batch.Passed, batch.Failed, batch.Limit, batch.Infrastructure, batch.Suspect}

// filterRules returns style rules that hide trials whose outcome or agent is not
// checked.
func filterRules(agents int) string {
	var b strings.Builder
	for _, o := range outcomes {
		fmt.Fprintf(&b, "body:has(#show-%s:not(:checked)) .trial.%s{display:none}\n", o, o)
	}
	for i := range agents {
		fmt.Fprintf(&b, "body:has(#show-a%d:not(:checked)) .trial.a%d{display:none}\n", i, i)
	}
	return b.String()
}
