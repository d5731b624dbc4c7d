package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/openai"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner/record"
)

// makeModel makes a real model. Its errors are a *commandError.
func makeModel(m config.SelectedModel, s modelSettings) (loop.Model, func(), error) {
	if m.Provider == "replay" {
		model, err := replay.Open(m.Name, replay.Options{
			Report: func(d replay.Difference) { s.differs(d.String()) }, Logger: s.logger,
		})
		if err != nil {
			status := exitConfig
			if errors.Is(err, fs.ErrNotExist) {
				status = exitInput
			}
			return nil, nil, &commandError{Status: status, Err: err, Problem: record.Problem{
				Cause: "the recording can't be played: " + err.Error(),
				Hint:  "Name a script, a trace.jsonl or an ATIF file: --model replay/FILE.",
			}}
		}
		return model, func() {}, nil
	}
	if m.APIKey == "" && m.KeyNeeded {
		return nil, nil, &commandError{Status: exitAuth, Problem: record.Problem{
			Cause: "there is no key for the model " + m.Provider + "/" + m.Name + ": " + m.KeyEnv + " is not set",
			Hint:  "Set it to your key, or name another model with --model; --model replay/FILE needs none.",
		}}
	}
	o := openai.Options{
		Model: m.Name, BaseURL: m.BaseURL, APIKey: m.APIKey, Stream: s.stream, Temperature: m.Temperature,
		MaxOutputTokens: m.MaxOutputTokens, Logger: s.logger,
		MaxRetries: m.MaxRetries, MaxRetryDelay: m.MaxRetryDelay, HeaderTimeout: m.HeaderTimeout, IdleTimeout: m.IdleTimeout,
	}
	if s.retries != nil {
		o.OnRetry = func(r openai.Retry) { s.retries(retryText(r)) }
	}
	if m.Price != nil {
		o.Price = &openai.Price{Input: float64(m.Price.Input), CachedInput: float64(m.Price.CachedInput), Output: float64(m.Price.Output)}
	}
	model, err := openai.New(o)
	if err != nil {
		return nil, nil, &commandError{Status: exitConfig, Err: err, Problem: record.Problem{
			Cause: "the model can't be used: " + err.Error(), Hint: "Check base_url and the model's profile.",
		}}
	}
	return model, model.Close, nil
}

// retryText describes a retry of a model's request for people.
func retryText(r openai.Retry) string {
	failure := "no answer"
	if r.Status != 0 {
		failure = strings.TrimSpace(fmt.Sprintf("HTTP %d %s", r.Status, http.StatusText(r.Status)))
	}
	wait := r.Delay
	if wait >= 10*time.Second {
		wait = wait.Round(time.Second)
	}
	return fmt.Sprintf("model: %s, retry %d of %d in %s", failure, r.Number, r.Most, wait)
}

// recordedTask returns the task of a recording, or "".
func recordedTask(m loop.Model) string {
	if r, ok := m.(interface{ Task() string }); ok {
		return r.Task()
	}
	return ""
}
