// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// memoryStorage is a storage shared by several Caddys.
type memoryStorage struct {
	lock sync.Mutex // what Lock holds

	mu      sync.Mutex // guards what is below
	content map[string]string
	stores  int

	loadErr, storeErr, lockErr error
	hang                       chan struct{} // if not nil, Load ignores its context and waits for it
	unlocked                   bool          // Lock locks nobody out
}

func newMemoryStorage() *memoryStorage { return &memoryStorage{content: make(map[string]string)} }

func (s *memoryStorage) Lock(context.Context, string) error {
	if s.lockErr == nil && !s.unlocked {
		s.lock.Lock()
	}
	return s.lockErr
}

func (s *memoryStorage) Unlock(context.Context, string) error {
	if !s.unlocked {
		s.lock.Unlock()
	}
	return nil
}

func (s *memoryStorage) Load(_ context.Context, key string) ([]byte, error) {
	if s.hang != nil {
		<-s.hang
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loadErr != nil {
		return nil, s.loadErr
	}
	text, ok := s.content[key]
	if !ok {
		return nil, fmt.Errorf("%s: %w", key, fs.ErrNotExist)
	}
	return []byte(text), nil
}

func (s *memoryStorage) Store(_ context.Context, key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.storeErr != nil {
		return s.storeErr
	}
	s.stores++
	s.content[key] = string(value)
	return nil
}

// newProcess forgets what seed this process worked with, as a restart would.
func newProcess(t *testing.T) {
	t.Helper()
	forget := func() {
		lastSeed.Lock()
		defer lastSeed.Unlock()
		lastSeed.seed = nil
	}
	forget()
	t.Cleanup(forget)
}

func TestTheSeedOutlivesTheProcess(t *testing.T) {
	storage := newMemoryStorage()
	newProcess(t)
	first := seedFrom(storage, seedTime, zap.NewNop())
	newProcess(t)
	if again := seedFrom(storage, seedTime, zap.NewNop()); !bytes.Equal(again, first) {
		t.Error("a second process has another seed")
	}
	if len(first) != seedSize || storage.stores != 1 {
		t.Errorf("%d bytes were stored %d times", len(first), storage.stores)
	}
	if other := seedFrom(newMemoryStorage(), seedTime, zap.NewNop()); bytes.Equal(other, first) {
		t.Error("two storages have one seed")
	}
}

func TestCaddysThatStartTogetherAgreeOnASeed(t *testing.T) {
	for range 20 {
		storage := newMemoryStorage()
		seeds := make([][]byte, 8)
		var all sync.WaitGroup
		for i := range seeds {
			all.Go(func() {
				seed, err := storedSeed(context.Background(), storage, zap.NewNop())
				if err != nil {
					t.Error(err)
				}
				seeds[i] = seed
			})
		}
		all.Wait()
		for _, seed := range seeds {
			if !bytes.Equal(seed, seeds[0]) {
				t.Fatal("they have different seeds")
			}
		}
		if storage.stores != 1 {
			t.Fatalf("%d of them made one", storage.stores)
		}
	}
}

func TestADamagedSeedIsReplaced(t *testing.T) {
	for _, damaged := range []string{"", "\n", "00", strings.Repeat("0", 65), strings.Repeat("x", 64)} {
		storage := newMemoryStorage()
		storage.content[seedKey] = damaged
		core, logs := observer.New(zapcore.WarnLevel)
		first, err := storedSeed(context.Background(), storage, zap.New(core))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := storedSeed(context.Background(), storage, zap.NewNop()); err != nil || !bytes.Equal(first, again) {
			t.Errorf("%q: got %v, and another seed", damaged, err)
		}
		if logs.Len() != 1 {
			t.Errorf("%q: %d warnings", damaged, logs.Len())
		}
	}
}

func TestASeedWrittenByHandIsTaken(t *testing.T) {
	storage := newMemoryStorage()
	storage.content[seedKey] = "  " + strings.Repeat("Ab", seedSize) + "\r\n"
	seed, err := storedSeed(context.Background(), storage, zap.NewNop())
	if err != nil || !bytes.Equal(seed, bytes.Repeat([]byte{0xab}, seedSize)) {
		t.Errorf("got %x, %v", seed, err)
	}
}

func TestWithoutStorageTheProcessHasOneSeedAndWarns(t *testing.T) {
	broken := errors.New("no such host")
	for what, storage := range map[string]*memoryStorage{
		"load":  {loadErr: broken},
		"lock":  {lockErr: broken},
		"store": {storeErr: broken},
	} {
		newProcess(t)
		core, logs := observer.New(zapcore.WarnLevel)
		first := seedFrom(storage, seedTime, zap.New(core))
		again := seedFrom(storage, seedTime, zap.New(core))
		if len(first) != seedSize || !bytes.Equal(first, again) {
			t.Errorf("%s: the seed changed between two configurations", what)
		}
		if logs.Len() != 2 || !strings.Contains(fmt.Sprint(logs.All()[0].ContextMap()), broken.Error()) {
			t.Errorf("%s: warned with %v", what, logs.All())
		}
	}
}

func TestAStorageThatFailsLaterDoesNotChangeTheSeed(t *testing.T) {
	newProcess(t)
	storage := newMemoryStorage()
	first := seedFrom(storage, seedTime, zap.NewNop())
	storage.loadErr = errors.New("connection refused")
	if again := seedFrom(storage, seedTime, zap.NewNop()); !bytes.Equal(first, again) {
		t.Error("the seed changed")
	}
}

func TestAStorageThatHangsIsNotWaitedForLonger(t *testing.T) {
	newProcess(t)
	synctest.Test(t, func(t *testing.T) {
		storage := newMemoryStorage()
		storage.hang = make(chan struct{})
		start := time.Now()
		if seed := seedFrom(storage, seedTime, zap.NewNop()); len(seed) != seedSize {
			t.Errorf("got %d bytes", len(seed))
		}
		if waited := time.Since(start); waited != seedTime {
			t.Errorf("waited %v", waited)
		}
		close(storage.hang)
	})
}
