// Package tools is the contract of tools and the dispatcher that runs them:
// names, schemas, side-effect classes, confirmation policy, slots, results and
// events. It implements the dispatcher specification (docs/specification.md),
// with the differences that docs/design/dispatch.md describes.
//
// It is rank 1 and knows neither sandbox nor loop: a tool that needs a
// container declares the one to three methods that it needs, and runner adapts
// a sandbox to them. The concrete tools are in sub-packages.
package tools
