//go:build !linux

package ui

import (
	"context"
	"os"
	"time"
)

// KeyPressed reports nothing here: a line that was typed before a question was
// asked is dropped only where it was read already.
func KeyPressed(context.Context, *os.File, time.Duration) (bool, error) { return false, nil }
