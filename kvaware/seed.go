// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// seedKey is where the seed is in Caddy's storage: seedSize bytes in
	// hexadecimal digits.
	seedKey  = "kv_aware/seed"
	seedSize = 32

	// seedTime bounds how long the storage is waited for. Nothing but the chains
	// of other Caddys depends on it.
	seedTime = 5 * time.Second
)

// seedStorage is what the seed needs of Caddy's storage.
type seedStorage interface {
	Lock(ctx context.Context, name string) error
	Unlock(ctx context.Context, name string) error
	Load(ctx context.Context, key string) ([]byte, error)
	Store(ctx context.Context, key string, value []byte) error
}

// lastSeed is the seed that this process worked with last, for configurations
// that are loaded while the storage cannot be read.
var lastSeed struct {
	sync.Mutex // guards seed
	seed       []byte
}

// seedFrom gives the seed in the storage, made there if there is none. If that
// fails or takes longer than most, the seed is the process's own; no
// configuration fails for it.
func seedFrom(storage seedStorage, most time.Duration, logger *zap.Logger) []byte {
	type result struct {
		seed []byte
		err  error
	}
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	// Not every storage heeds its context, so it is called beside this goroutine.
	done := make(chan result, 1)
	go func() {
		seed, err := storedSeed(ctx, storage, logger)
		done <- result{seed, err}
	}()
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		r.err = ctx.Err()
	}

	lastSeed.Lock()
	defer lastSeed.Unlock()
	if r.err == nil {
		lastSeed.seed = r.seed
		return r.seed
	}
	logger.Warn("the seed of block hashes cannot be kept in storage: hashes are this process's own, and no other Caddy's match them; fix the storage, or give kv_aware a secret",
		zap.String("key", seedKey), zap.Error(r.err))
	if lastSeed.seed == nil {
		lastSeed.seed = newSeed()
	}
	return lastSeed.seed
}

var errDamagedSeed = errors.New("the seed in storage is damaged")

// storedSeed loads the seed, or makes it under the storage's lock.
func storedSeed(ctx context.Context, storage seedStorage, logger *zap.Logger) (seed []byte, err error) {
	missing := func(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamagedSeed) }
	if seed, err = loadSeed(ctx, storage); !missing(err) {
		return seed, err
	}
	if err := storage.Lock(ctx, seedKey); err != nil {
		return nil, fmt.Errorf("locking: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), seedTime)
		defer cancel()
		if failed := storage.Unlock(ctx, seedKey); failed != nil && err == nil {
			logger.Warn("unlocking the seed of block hashes", zap.Error(failed))
		}
	}()
	// Another Caddy may have made it in the meantime.
	if seed, err = loadSeed(ctx, storage); !missing(err) {
		return seed, err
	}
	if errors.Is(err, errDamagedSeed) {
		logger.Warn("the seed of block hashes in storage is damaged: a new one takes its place", zap.String("key", seedKey))
	}
	text := hex.AppendEncode(nil, newSeed())
	if err := storage.Store(ctx, seedKey, append(text, '\n')); err != nil {
		return nil, fmt.Errorf("storing: %w", err)
	}
	// What the storage says counts, should it have locked nobody out.
	return loadSeed(ctx, storage)
}

// loadSeed reads the seed.
func loadSeed(ctx context.Context, storage seedStorage) ([]byte, error) {
	text, err := storage.Load(ctx, seedKey)
	if err != nil {
		return nil, fmt.Errorf("loading: %w", err)
	}
	seed := make([]byte, seedSize)
	text = bytes.TrimSpace(text)
	if len(text) != hex.EncodedLen(seedSize) {
		return nil, errDamagedSeed
	}
	if _, err := hex.Decode(seed, text); err != nil {
		return nil, errDamagedSeed // the decoder's own error quotes a digit
	}
	return seed, nil
}
