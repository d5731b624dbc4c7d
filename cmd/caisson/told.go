package main

import (
	"encoding/json"
	"path/filepath"
	"time"

	"github.com/caisson-run/caisson/limits/state"
)

// toldFile has the facts about this machine that the user was told, and when; maxTold bounds
// it.
const (
	toldFile = "told.json"
	maxTold  = 64 << 10
	tellAt   = 24 * time.Hour
)

// untold returns the facts that the user was not told within a day, and keeps that they are
// told now. They are about a workspace, or about this machine if that is "". If it can't be
// kept, they are told again: caisson doctor tells them each time.
func (e environ) untold(workspace string, facts []string) []string {
	if len(facts) == 0 || e.stateDir() == "" {
		return facts
	}
	path, now := filepath.Join(e.stateDir(), toldFile), time.Now()
	told := map[string]time.Time{}
	if text, err := state.Read(path, maxTold); err == nil && state.Decode(text, &told) != nil {
		told = map[string]time.Time{}
	}
	var fresh []string
	for _, fact := range facts {
		if at, ok := told[workspace+"\n"+fact]; !ok || at.After(now) || now.Sub(at) >= tellAt {
			fresh = append(fresh, fact)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	for fact, at := range told {
		if now.Sub(at) >= tellAt {
			delete(told, fact)
		}
	}
	for _, fact := range fresh {
		told[workspace+"\n"+fact] = now
	}
	if text, err := json.Marshal(told); err == nil && len(text) <= maxTold {
		_ = state.Replace(path, text) // or they are told again
	}
	return fresh
}
