package ci

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/prose"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

const (
	// maxSummary is GitHub's limit for the summary of a step.
	maxSummary = 1 << 20
	// maxListed bounds each list of a summary, maxPath a path in it, and maxPart an
	// answer or output. In the worst case a byte becomes six.
	maxListed = 100
	maxPath   = 300
	maxPart   = 32 << 10
)

// renderSummary returns the summary of a run in Markdown, in at most room bytes. It
// drops sections at the end that don't fit.
func renderSummary(r runner.Report, failures, room int) string {
	var b strings.Builder
	const omitted = "\nThe rest does not fit: see the report of the session.\n"
	for _, section := range []string{
		outcomeSection(r), problemSection(r), verifySection(r, failures), differencesSection(r), readFirstSection(r), changesSection(r), refusalsSection(r), answerSection(r), patchSection(r),
	} {
		if b.Len()+len(section)+len(omitted) > room {
			if room-b.Len() >= len(omitted) {
				b.WriteString(omitted)
			}
			break
		}
		b.WriteString(section)
	}
	return b.String()
}

func outcomeSection(r runner.Report) string {
	outcome := "failed"
	if r.ExitStatus == runner.OutcomeDone {
		outcome = "done"
	}
	cost := "unknown"
	if r.CostUSD != "unknown" {
		cost = "$" + r.CostUSD
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n## Caisson: %s\n\n", outcome)
	for _, row := range [][2]string{
		{"Exit status", fmt.Sprint(r.ExitStatus)},
		{"Stop reason", string(r.Reason)},
		{"Session", r.Session},
		{"Cost", cost},
		{"Tokens", fmt.Sprintf("%d in, %d out", r.Usage.InputTokens+r.Usage.CachedInputTokens+r.Usage.CacheWriteTokens, r.Usage.OutputTokens)},
		{"Time", (time.Duration(r.WallMS) * time.Millisecond).Round(100 * time.Millisecond).String()},
		{"Changes", r.ChangedCount.String()},
	} {
		fmt.Fprintf(&b, "- %s: %s\n", row[0], codeText(row[1]))
	}
	return b.String()
}

func problemSection(r runner.Report) string {
	if r.Problem == nil {
		return ""
	}
	return "\n### Problem\n\n" + preText(r.Problem.Cause+"\n"+r.Problem.Hint)
}

func verifySection(r runner.Report, failures int) string {
	v := r.Verification
	if v == nil {
		return ""
	}
	text := "\n### Verification\n\n" + codeText(v.Command) + ": " + codeText(v.String()) + "\n"
	if failures > 0 {
		text += fmt.Sprintf("\nFailed tests in its reports: %d\n", failures)
	}
	if v.Output != "" {
		text += detailsText("The end of its output", v.Output)
	}
	return text
}

func differencesSection(r runner.Report) string {
	return listSection("Differences from the replayed run", r.Differences, record.Difference.String)
}

func readFirstSection(r runner.Report) string {
	return listSection("Not vouched for", r.Quarantined, record.Quarantined.String) +
		listSection("Files with privileges", r.Cleared, record.Cleared.String) +
		listSection("Left behind", r.Left, func(part string) string { return part }) +
		listSection("Read these first: programs of the host would run or obey them", changes.GroupHostExecuted(r.HostExecuted), changes.HostGroup.String)
}

func changesSection(r runner.Report) string {
	section := listSection("Changed files", r.Changed, func(c record.Changed) string {
		if c.HasDiff {
			return fmt.Sprintf("%s: %s, +%d -%d", elidePath(c.Path), c.Change, c.Insertions, c.Deletions)
		}
		return elidePath(c.Path) + ": " + c.Change
	})
	if o := r.Overlay; o != nil {
		section += fmt.Sprintf("\nChanges: %d, %s, %d applied\n", o.Changes, codeText(string(o.State)), o.Applied)
		note := func(n record.PathNote) string { return elidePath(n.Path) + ": " + n.Why }
		section += listSection("Conflicts", o.Conflicts, note) + listSection("Left out", o.LeftOut, note) + listSection("Failed", o.Failed, note)
	}
	return section
}

func refusalsSection(r runner.Report) string {
	return listSection("Refused calls", r.Denials, func(d record.Denial) string { return fmt.Sprintf("%s: %s, %s", d.Name, d.Class, d.Reason) })
}

func answerSection(r runner.Report) string {
	if r.Answer == "" {
		return ""
	}
	return "\n### Answer\n\n" + prose.HTML(prose.Parse(tools.Elide(r.Answer, maxPart)), prose.Escapes{Text: plainText, Code: escapeMarkdown})
}

func patchSection(r runner.Report) string {
	if r.Patch == "" {
		return ""
	}
	return "\n### Diff\n" + detailsText("Show the diff", r.Patch)
}

// plainText returns text as HTML. Words that GitHub would turn into links become code:
// mentions, issues, commits and addresses.
func plainText(text string) string {
	words := strings.Split(text, " ")
	for i, w := range words {
		words[i] = escapeMarkdown(w)
		if strings.ContainsAny(w, "@#:/") || strings.Contains(strings.ToLower(w), "www.") || linkedWord().MatchString(w) {
			words[i] = "<code>" + words[i] + "</code>"
		}
	}
	return strings.Join(words, " ")
}

// linkedWord matches words that GitHub may link without a sign such as "#": an issue's
// GH-1 and a commit's hash.
var linkedWord = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)gh-[0-9]|[0-9a-f]{7}`) })

// listSection returns a heading and the first maxListed items, or "" for an empty list.
func listSection[T any](title string, list []T, text func(T) string) string {
	if len(list) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n### %s\n\n", title)
	for _, v := range list[:min(len(list), maxListed)] {
		b.WriteString("- " + codeText(text(v)) + "\n")
	}
	if over := len(list) - maxListed; over > 0 {
		fmt.Fprintf(&b, "- and %d more, in the report of the session\n", over)
	}
	return b.String()
}

func elidePath(name string) string { return tools.Elide(name, maxPath) }

// codeText returns foreign text in one line, as code. GitHub makes no links in code.
func codeText(text string) string {
	safe, _ := tools.Display(tools.Elide(text, 2*maxPath))
	return "<code>" + escapeMarkdown(safe) + "</code>"
}

// preText returns foreign text of several lines as a block of code.
func preText(text string) string {
	safe, _ := tools.DisplayLines(tools.Elide(strings.ReplaceAll(strings.TrimSpace(text), "\r\n", "\n"), maxPart))
	return "<pre>" + escapeMarkdown(safe) + "</pre>\n"
}

func detailsText(title, text string) string {
	return "\n<details><summary>" + title + "</summary>\n\n" + preText(text) + "\n</details>\n"
}

// escapeMarkdown returns text that is neither Markdown nor HTML. Each ASCII character
// except letters, digits and white space becomes a reference, which Markdown never
// takes for a marker.
func escapeMarkdown(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		switch {
		case c >= 0x80, c == ' ', c == '\n', c == '\t', '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "&#%d;", c)
		}
	}
	return b.String()
}
