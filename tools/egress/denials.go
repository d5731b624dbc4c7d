package egress

import (
	"cmp"
	"slices"
	"sync"
)

// denials are a session's refusals that no caller has taken yet. Equal ones are
// counted together.
type denials struct {
	report func(Denied)

	mu   sync.Mutex
	next int
	// kept maps refusals with a Count of zero to their counts.
	kept map[Denied]*denial
}

type denial struct {
	order      int // of the first occurrence
	count      int
	unreported int
}

// addDenied adds a refusal with a Count of 1. It reports the first of its kind at
// once.
func (d *denials) addDenied(x Denied) {
	key := x
	key.Count = 0
	d.mu.Lock()
	if d.kept == nil {
		d.kept = map[Denied]*denial{}
	}
	seen := d.kept[key]
	if seen == nil && len(d.kept) >= maxDenials {
		// Give up the details, so that a program can't fill the memory.
		key = Denied{Command: x.Command, Reason: x.Reason}
		x = key
		x.Count = 1
		seen = d.kept[key]
	}
	first := seen == nil
	if first {
		d.next++
		seen = &denial{order: d.next}
		d.kept[key] = seen
	} else {
		seen.unreported++
	}
	seen.count++
	d.mu.Unlock()
	if first {
		d.report(x)
	}
}

func (d *denials) reportRest() { d.takeIf(func(Denied) bool { return true }) }

// takeIf returns and forgets the matching refusals. It reports the repeated ones.
func (d *denials) takeIf(matches func(Denied) bool) []Denied {
	type counted struct {
		Denied
		denial
	}
	var taken []counted
	d.mu.Lock()
	for key, x := range d.kept {
		if matches(key) {
			taken = append(taken, counted{key, *x})
			delete(d.kept, key)
		}
	}
	d.mu.Unlock()
	slices.SortFunc(taken, func(a, b counted) int { return cmp.Compare(a.order, b.order) })
	var out []Denied
	for _, x := range taken {
		if x.Count = x.unreported; x.Count > 0 {
			d.report(x.Denied)
		}
		x.Count = x.count
		out = append(out, x.Denied)
	}
	return out
}
