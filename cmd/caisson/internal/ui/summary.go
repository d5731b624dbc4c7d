package ui

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/record"
)

// Summary returns the last lines of a run: the changes, the notices to read first, and
// the cost.
func Summary(r runner.Report, colour bool) []string {
	s := style{colour}
	stat := Stat(changes.Differences{Changed: r.Changed, Count: r.ChangedCount, Incomplete: r.Incomplete}, colour)
	return append(slices.Concat(notVouched(r, s), stat, noticeLines(r, s)), s.dim(costLine(r)))
}

// Notices returns the notices to read before anything else.
func Notices(r runner.Report, colour bool) []string {
	s := style{colour}
	return append(notVouched(r, s), noticeLines(r, s)...)
}

// notVouched returns lines about everything that could not be renamed or checked. It
// lists all: some could be meant to hide others.
func notVouched(r runner.Report, s style) []string {
	var lines []string
	for _, q := range r.Quarantined[:notRenamed(r)] {
		lines = append(lines, s.red("! "+safeLine(q.String())))
	}
	return lines
}

// notRenamed returns the number of quarantined entries that were not renamed, which
// come first.
func notRenamed(r runner.Report) int {
	renamed := slices.IndexFunc(r.Quarantined, func(q record.Quarantined) bool { return q.To != "" })
	if renamed < 0 {
		return len(r.Quarantined)
	}
	return renamed
}

// noticeLines returns the other notices to read first.
func noticeLines(r runner.Report, s style) []string {
	var lines []string
	lines = append(lines, HostExecuted(r.HostExecuted, r.HostExecutedOmitted, s.on)...)
	lines = append(lines, firstFew(r.Quarantined[notRenamed(r):], func(q record.Quarantined) string { return s.yellow("! " + safeLine(q.String())) })...)
	lines = append(lines, firstFew(r.Cleared, func(c record.Cleared) string {
		if c.Why != "" {
			return s.red("! " + safeLine(c.String()))
		}
		return s.yellow("! " + safeLine(c.String()))
	})...)
	for _, l := range r.Left {
		lines = append(lines, s.red("! left behind: "+safeLine(l)))
	}
	return append(lines, describeKept(r, s)...)
}

// firstFew renders the first items of a list and the number of the others.
func firstFew[T any](list []T, render func(T) string) []string {
	const most = 20
	var out []string
	for _, v := range list[:min(len(list), most)] {
		out = append(out, render(v))
	}
	if over := len(list) - most; over > 0 {
		out = append(out, fmt.Sprintf("! … and %d more, in report.json", over))
	}
	return out
}

// Stat lists changed files like git.
func Stat(d changes.Differences, colour bool) []string {
	const most = 30
	s := style{colour}
	changed, repositories := withoutRepositories(d.Changed)
	shown := changed[:min(len(changed), most)]
	width := 0
	for _, c := range shown {
		width = max(width, len([]rune(safeLine(c.Path))))
	}
	width = min(width, 60)
	var out []string
	for _, c := range shown {
		what := c.Change
		if c.Change != "deleted" && c.Change != "mode" {
			what += ", " + limits.FormatSize(c.Size)
		}
		if c.HasDiff {
			what = fmt.Sprintf("%d %s%s", c.Insertions+c.Deletions, s.green(changeBar('+', c.Insertions, c.Deletions)), s.red(changeBar('-', c.Deletions, c.Insertions)))
		}
		out = append(out, fmt.Sprintf(" %-*s | %s", width, fitWidth(safeLine(c.Path), 60), what))
	}
	for _, repo := range repositories {
		out = append(out, fmt.Sprintf(" %-*s | a repository, changed", width, fitWidth(safeLine(repo), 60)))
	}
	if more := max(d.Count.Files-len(d.Changed), 0) + len(changed) - len(shown); more > 0 {
		out = append(out, fmt.Sprintf(" … and %d more", more))
	}
	total := " " + d.Count.String()
	if d.Incomplete {
		total += "; the workspace is too large, or could not be read whole, to be sure"
	}
	return append(out, total)
}

// withoutRepositories returns the changes outside .git directories, and the .git
// directories that have changes: a commit changes a dozen uninteresting files there.
func withoutRepositories(changed []record.Changed) (rest []record.Changed, repositories []string) {
	for _, c := range changed {
		names := strings.Split(c.Path, "/")
		i := slices.Index(names, ".git")
		if i < 0 || i == len(names)-1 {
			rest = append(rest, c)
			continue
		}
		if repo := strings.Join(names[:i+1], "/"); !slices.Contains(repositories, repo) {
			repositories = append(repositories, repo)
		}
	}
	return rest, repositories
}

// changeBar repeats sign n times. If n and other together need too many cells, it
// shortens n in proportion.
func changeBar(sign byte, n, other int) string {
	const cells = 40
	if total := n + other; total > cells {
		n = (n*cells + total - 1) / total
	}
	return strings.Repeat(string(sign), n)
}

func costLine(r runner.Report) string {
	cost := "cost unknown"
	if r.CostUSD != "unknown" {
		cost = "$" + TrimCents(r.CostUSD)
	}
	u := r.Usage
	return fmt.Sprintf("%s · %d tokens in, %d out · %s, %s · %s.%d s · records in %s",
		cost, u.InputTokens+u.CachedInputTokens+u.CacheWriteTokens, u.OutputTokens,
		limits.FormatCount(int(u.Rounds), "model call"), limits.FormatCount(int(u.ToolCalls), "tool call"),
		fmt.Sprint(r.WallMS/1000), r.WallMS%1000/100, safeLine(r.Dir))
}

// TrimCents removes zeros from the end of an amount, but keeps two decimals.
func TrimCents(amount string) string {
	whole, part, _ := strings.Cut(amount, ".")
	part = strings.TrimRight(part, "0")
	return whole + "." + part + strings.Repeat("0", max(2-len(part), 0))
}
