package ledger

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
)

// noon is the time of the tests, in the middle of a month.
var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func atNoon() time.Time { return noon }

// price makes a token cost a millionth of a dollar.
var price = &limits.Price{Input: 1, CachedInput: 1, CacheWrite: 1, Output: 1}

func openLedger(t *testing.T, o Options) *Ledger {
	t.Helper()
	if o.StateDir == "" {
		o.StateDir = t.TempDir()
	}
	if o.Now == nil {
		o.Now = atNoon
	}
	l, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func perDay(requests, tokens, cost int64) limits.Ceilings {
	var c limits.Ceilings
	for _, f := range []struct {
		n  int64
		to **int64
	}{{requests, &c.Day.Requests}, {tokens, &c.Day.Tokens}, {cost, &c.Day.CostMicroUSD}} {
		if f.n > 0 {
			*f.to = &f.n
		}
	}
	return c
}

// reserve reserves tokens for a user and a profile, all of them input except
// one.
func reserve(t *testing.T, l *Ledger, user, profile string, tokens int64) (loop.LedgerEntry, *limits.ExceededError) {
	t.Helper()
	e, err := l.ForUser(user).Reserve(t.Context(), profile, limits.Demand{Input: tokens - 1, Output: 1, MinOutput: 1, Price: price})
	exceeded, ok := errors.AsType[*limits.ExceededError](err)
	if err != nil && !ok {
		t.Fatal(err)
	}
	return e, exceeded
}

func use(t *testing.T, l *Ledger, user, profile string, tokens int64) {
	t.Helper()
	e, exceeded := reserve(t, l, user, profile, tokens)
	if exceeded != nil {
		t.Fatal(exceeded)
	}
	if err := e.Settle(&limits.Usage{InputTokens: tokens, CostMicroUSD: new(tokens)}); err != nil {
		t.Fatal(err)
	}
}

// TestCeilings checks which ceiling a request exceeds, and how the error names
// it.
func TestCeilings(t *testing.T) {
	tomorrow, nextMonth := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC), time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		user    limits.Ceilings
		profile limits.Ceilings
		want    *limits.ExceededError
	}{
		"no ceiling of this profile": {},
		"all fit exactly":            {user: perDay(2, 200, 200), profile: perDay(2, 200, 200)},
		"requests":                   {user: perDay(1, 0, 0), want: &limits.ExceededError{Kind: limits.KindRequests, Limit: 1, Used: 1, Period: limits.PeriodDay, Until: &tomorrow}},
		"tokens":                     {user: perDay(0, 199, 0), want: &limits.ExceededError{Kind: limits.KindTokens, Limit: 199, Used: 100, Needed: 100, Period: limits.PeriodDay, Until: &tomorrow}},
		"cost":                       {user: perDay(0, 0, 199), want: &limits.ExceededError{Kind: limits.KindCost, Limit: 199, Used: 100, Needed: 100, Period: limits.PeriodDay, Until: &tomorrow}},
		"nothing left":               {user: perDay(0, 100, 0), want: &limits.ExceededError{Kind: limits.KindTokens, Limit: 100, Used: 100, Period: limits.PeriodDay, Until: &tomorrow}},
		"month":                      {user: limits.Ceilings{Month: perDay(1, 0, 0).Day}, want: &limits.ExceededError{Kind: limits.KindRequests, Limit: 1, Used: 1, Period: limits.PeriodMonth, Until: &nextMonth}},
		"profile":                    {profile: perDay(1, 0, 0), want: &limits.ExceededError{Kind: limits.KindRequests, Limit: 1, Used: 1, Period: limits.PeriodDay, Until: &tomorrow, Profile: "main"}},
		"the user's is named first":  {user: perDay(1, 0, 0), profile: perDay(1, 0, 0), want: &limits.ExceededError{Kind: limits.KindRequests, Limit: 1, Used: 1, Period: limits.PeriodDay, Until: &tomorrow}},
		"the day's is named first": {
			user: limits.Ceilings{Month: perDay(1, 0, 0).Day}, profile: perDay(0, 100, 0),
			want: &limits.ExceededError{Kind: limits.KindTokens, Limit: 100, Used: 100, Period: limits.PeriodDay, Until: &tomorrow, Profile: "main"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := openLedger(t, Options{User: tt.user, Profiles: map[string]limits.Ceilings{"main": tt.profile}})
			use(t, l, "alice", "main", 100)
			_, got := reserve(t, l, "alice", "main", 100)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			// Control: another user's use of another profile does not count.
			if _, got := reserve(t, l, "bob", "other", 100); got != nil {
				t.Errorf("another user with another profile: %v", got)
			}
		})
	}
}

// A user's ceiling counts all profiles, and a profile's all users.
func TestWhatCountsForWhom(t *testing.T) {
	l := openLedger(t, Options{User: perDay(2, 0, 0), Profiles: map[string]limits.Ceilings{"main": perDay(2, 0, 0)}})
	use(t, l, "alice", "main", 1)
	use(t, l, "bob", "main", 1)
	if _, e := reserve(t, l, "carol", "main", 1); e == nil || e.Profile != "main" {
		t.Errorf("a third user of the profile: %v", e)
	}
	use(t, l, "alice", "other", 1)
	if _, e := reserve(t, l, "alice", "third", 1); e == nil || e.Profile != "" {
		t.Errorf("a third request of the user: %v", e)
	}
}

// A reservation counts while the request is under way, for others too, and then
// only what was used.
func TestUsageReplacesReservation(t *testing.T) {
	dir := t.TempDir()
	one := openLedger(t, Options{StateDir: dir, User: perDay(0, 1000, 0)})
	other := openLedger(t, Options{StateDir: dir, User: perDay(0, 1000, 0)})
	entry, _ := reserve(t, one, "alice", "main", 900)
	_, e := reserve(t, other, "alice", "main", 101)
	if e == nil || e.Used != 900 || e.Reserved != 900 || e.Needed != 101 {
		t.Fatalf("beside a reservation: %+v", e)
	}
	if err := entry.Settle(&limits.Usage{InputTokens: 10}); err != nil {
		t.Fatal(err)
	}
	second, e := reserve(t, other, "alice", "main", 990)
	if e != nil {
		t.Fatalf("after it was settled: %v", e)
	}
	if err := second.Settle(nil); err != nil { // the request failed
		t.Fatal(err)
	}
	if third, e := reserve(t, one, "alice", "main", 990); e != nil {
		t.Errorf("after a request that used nothing: %v", e)
	} else if err := third.Settle(&limits.Usage{InputTokens: -5, OutputTokens: math.MinInt64, CostMicroUSD: new(int64(-1))}); err != nil {
		t.Fatal(err)
	}
	if _, e := reserve(t, one, "alice", "main", 991); e == nil || e.Used != 10 {
		t.Errorf("negative usage has given something back: %v", e)
	}
	huge := &limits.Usage{InputTokens: math.MaxInt64, OutputTokens: math.MaxInt64, CostMicroUSD: new(int64(math.MaxInt64))}
	for range 2 {
		if err := second.Settle(huge); err != nil {
			t.Fatal(err)
		}
	}
	if _, e := reserve(t, one, "alice", "main", 2); e == nil || e.Used != math.MaxInt64 {
		t.Errorf("after huge usage: %v", e)
	}
}

func TestShorterAnswer(t *testing.T) {
	l := openLedger(t, Options{User: perDay(0, 1000, 0), Profiles: map[string]limits.Ceilings{"main": perDay(0, 0, 900)}})
	e, err := l.ForUser("alice").Reserve(t.Context(), "main", limits.Demand{Input: 500, Output: 5000, MinOutput: 100, Price: price})
	if err != nil || e.Demand.Output != 400 || e.Lowered == nil || e.Lowered.Kind != limits.KindCost || e.Lowered.Profile != "main" {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestPeriods checks the effect of a new day, a new month and a clock that was
// set back.
func TestPeriods(t *testing.T) {
	now := noon
	ceilings := limits.Ceilings{Day: perDay(0, 100, 0).Day, Month: perDay(0, 250, 0).Day}
	l := openLedger(t, Options{User: ceilings, Now: func() time.Time { return now }})
	use(t, l, "alice", "main", 100)
	for _, step := range []struct {
		what string
		now  time.Time
		free bool
		kind limits.Period
	}{
		{"the same day", noon.Add(11 * time.Hour), false, limits.PeriodDay},
		{"another zone's tomorrow", time.Date(2026, 11, 24, 1, 0, 0, 0, time.FixedZone("east", 2*3600)), false, limits.PeriodDay},
		{"the clock set back by a day", noon.AddDate(0, 0, -1), false, limits.PeriodDay},
		{"the clock set back by years", noon.AddDate(-3, 0, 0), false, limits.PeriodDay},
		{"the next day", noon.AddDate(0, 0, 1), true, ""},
	} {
		now = step.now
		entry, e := reserve(t, l, "alice", "main", 100)
		if free := e == nil; free != step.free || !free && (e.Period != step.kind || *e.Until != time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)) {
			t.Errorf("%s: %v", step.what, e)
		}
		if e == nil {
			_ = entry.Settle(nil)
		}
	}
	use(t, l, "alice", "main", 100)
	now = noon.AddDate(0, 0, 2)
	if _, e := reserve(t, l, "alice", "main", 51); e == nil || e.Period != limits.PeriodMonth || *e.Until != time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC) {
		t.Errorf("the month's ceiling on the third day: %v", e)
	}
	now = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	use(t, l, "alice", "main", 100)
	doc, err := l.readDocument()
	if err != nil || doc.Users["alice"].Month.Tokens != 100 || len(doc.Reservations) != 0 {
		t.Errorf("in the next month: %+v, %v", doc, err)
	}
}

// Four fifths of a ceiling are reported once per ledger.
func TestWarnings(t *testing.T) {
	dir := t.TempDir()
	o := Options{StateDir: dir, User: perDay(0, 100, 0), Profiles: map[string]limits.Ceilings{"main": perDay(0, 1000, 0)}}
	l := openLedger(t, o)
	use(t, l, "alice", "main", 79)
	count := func(l *Ledger) int {
		e, exceeded := reserve(t, l, "alice", "main", 2)
		if exceeded != nil {
			t.Fatal(exceeded)
		}
		_ = e.Settle(nil)
		return len(e.Warnings)
	}
	if n := count(l); n != 0 {
		t.Errorf("%d warnings at 79 of 100", n)
	}
	use(t, l, "alice", "main", 1)
	if first, second := count(l), count(l); first != 1 || second != 0 {
		t.Errorf("%d and %d warnings at 80 of 100", first, second)
	}
	if n := count(openLedger(t, o)); n != 1 {
		t.Errorf("%d warnings in another session", n)
	}
}

// A cost ceiling refuses a request of unknown cost. A price of zero is a price.
func TestUnknownPrice(t *testing.T) {
	d := limits.Demand{Input: 10, Output: 10, MinOutput: 1}
	l := openLedger(t, Options{User: perDay(0, 0, 5)})
	if _, err := l.ForUser("alice").Reserve(t.Context(), "main", d); err == nil {
		t.Error("a request of unknown cost is reserved")
	}
	d.Price = &limits.Price{}
	if _, err := l.ForUser("alice").Reserve(t.Context(), "main", d); err != nil {
		t.Errorf("a request that costs nothing: %v", err)
	}
	d.Price = nil
	if _, err := openLedger(t, Options{User: perDay(0, 1000, 0)}).ForUser("alice").Reserve(t.Context(), "main", d); err != nil {
		t.Errorf("without a ceiling of cost: %v", err)
	}
}

// A file that can't be trusted is refused when the ledger is opened and when a
// request begins, and never counts as zero.
func TestUnusableFiles(t *testing.T) {
	valid := `{"version":1,"users":{"alice":{"day":{"since":"2026-11-23T00:00:00Z","requests":1,"tokens":100,"cost_micro_usd":0},` +
		`"month":{"since":"2026-11-01T00:00:00Z","requests":1,"tokens":100,"cost_micro_usd":0}}},"profiles":{},"reservations":[]}`
	for name, tt := range map[string]struct {
		text    string
		mode    fs.FileMode
		prepare func(t *testing.T, dir, file string)
		ok      bool
		corrupt bool
	}{
		"valid":         {text: valid, ok: true},
		"no file":       {prepare: func(t *testing.T, _, file string) { must(t, os.Remove(file)) }, ok: true},
		"empty":         {text: "", corrupt: true},
		"torn":          {text: valid[:len(valid)/2], corrupt: true},
		"zero bytes":    {text: strings.Repeat("\x00", 300), corrupt: true},
		"other version": {text: strings.Replace(valid, `"version":1`, `"version":2`, 1), corrupt: true},
		"other keys":    {text: strings.Replace(valid, `"users"`, `"people"`, 1), corrupt: true},
		"more":          {text: valid + "{}", corrupt: true},
		"negative":      {text: strings.Replace(valid, `"tokens":100`, `"tokens":-100`, 1), corrupt: true},
		"overflow":      {text: strings.Replace(valid, `"tokens":100`, `"tokens":100000000000000000000`, 1), corrupt: true},
		"no day":        {text: strings.Replace(valid, `23T00:00`, `23T10:00`, 1), corrupt: true},
		"holder's path": {text: strings.Replace(valid, `"reservations":[]`, `"reservations":[{"id":"x","holder":"../../x","user":"","profile":"","requests":1,"tokens":1,"cost_micro_usd":1}]`, 1), corrupt: true},
		"too long":      {text: valid + strings.Repeat(" ", maxBytes), corrupt: true},
		"writable":      {text: valid, mode: 0o620},
		"symlink": {text: valid, prepare: func(t *testing.T, dir, file string) {
			must(t, os.Rename(file, filepath.Join(dir, "x")))
			must(t, os.Symlink("x", file))
		}},
		"directory":        {prepare: func(t *testing.T, _, file string) { must(t, os.Remove(file)); must(t, os.Mkdir(file, 0o700)) }, corrupt: true},
		"shared directory": {text: valid, prepare: func(t *testing.T, dir, _ string) { must(t, os.Chmod(dir, 0o770)) }},
		"symlinked directory": {text: valid, prepare: func(t *testing.T, dir, _ string) {
			must(t, os.Rename(dir, dir+".x"))
			must(t, os.Symlink(dir+".x", dir))
		}},
		"shared state": {text: valid, prepare: func(t *testing.T, dir, _ string) { must(t, os.Chmod(filepath.Dir(dir), 0o777)) }},
		"another user's": {text: valid, prepare: func(t *testing.T, _, file string) {
			if os.Geteuid() != 0 {
				t.Skip("only root makes files of another user")
			}
			must(t, os.Chown(file, 65534, 65534))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			state := filepath.Join(t.TempDir(), "state")
			dir := filepath.Join(state, Dir)
			file := filepath.Join(dir, "ledger.json")
			must(t, os.MkdirAll(dir, 0o700))
			l := openLedger(t, Options{StateDir: state, User: perDay(0, 150, 0)})
			must(t, os.WriteFile(file, []byte(tt.text), 0o600))
			if tt.mode != 0 {
				must(t, os.Chmod(file, tt.mode))
			}
			if tt.prepare != nil {
				tt.prepare(t, dir, file)
			}
			second, err := Open(t.Context(), Options{StateDir: state})
			if err == nil {
				must(t, second.Close())
			}
			failure, ok := errors.AsType[*FileError](err)
			if tt.ok != (err == nil) || !tt.ok && (!ok || failure.Corrupt != tt.corrupt) {
				t.Errorf("open: %v", err)
			}
			if strings.Contains(name, "directory") && name != "directory" || name == "shared state" {
				return // checked when the ledger is opened, and only its owner can change it
			}
			before, _ := os.ReadFile(file)
			_, err = l.ForUser("alice").Reserve(t.Context(), "main", limits.Demand{Input: 1, Output: 1, MinOutput: 1, Price: price})
			if tt.ok != (err == nil) {
				t.Errorf("reserve: %v", err)
			}
			if after, _ := os.ReadFile(file); !tt.ok && string(after) != string(before) {
				t.Error("the refused file was changed")
			}
		})
	}
}

// No other user can read or write what the ledger makes.
func TestPrivateFiles(t *testing.T) {
	dir := t.TempDir()
	l := openLedger(t, Options{StateDir: dir, User: perDay(5, 0, 0)})
	use(t, l, "alice", "main", 1)
	seen := 0
	err := filepath.WalkDir(filepath.Join(dir, Dir), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		seen++
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil || seen != 4 {
		t.Errorf("%d files: %v", seen, err)
	}
}

// A cancelled request does not wait for the lock, and what closed and dead
// ledgers left is removed.
func TestLockIsWaitedFor(t *testing.T) {
	dir := t.TempDir()
	l := openLedger(t, Options{StateDir: dir, User: perDay(5, 0, 0)})
	err := l.withLock(t.Context(), func() error {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("stopped"))
		_, err := l.ForUser("alice").Reserve(ctx, "main", limits.Demand{Output: 1, MinOutput: 1})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("under another's lock: %v", err)
	}
	for _, name := range []string{"open-01KAJ6N8YV8QZ6W4T0F6P3E9RC", ".tmp-ledger.json123"} {
		must(t, os.WriteFile(filepath.Join(dir, Dir, name), nil, 0o600))
	}
	must(t, openLedger(t, Options{StateDir: dir}).Close())
	entries, err := os.ReadDir(filepath.Join(dir, Dir))
	if err != nil || len(entries) != 2 { // the lock, and the first ledger's own
		t.Errorf("%v is left: %v", entries, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// BenchmarkRequest measures what the ledger adds to one request: a reservation
// and its settlement.
func BenchmarkRequest(b *testing.B) {
	l, err := Open(b.Context(), Options{StateDir: b.TempDir(), User: perDay(math.MaxInt64, math.MaxInt64, math.MaxInt64)})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for b.Loop() {
		e, err := l.ForUser("alice").Reserve(b.Context(), "main", limits.Demand{Input: 1, Output: 1, MinOutput: 1, Price: price})
		if err != nil {
			b.Fatal(err)
		}
		if err := e.Settle(&limits.Usage{InputTokens: 1}); err != nil {
			b.Fatal(err)
		}
	}
}
